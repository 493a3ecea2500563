"""What counts as a copy, by hand."""

import math
from functools import partial

import torch

from linear_transformers.attention import LinearAttention
from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.runtime.reports.copies import copy_words
from linear_transformers.tasks import Copying
from linear_transformers.tasks.schedules import constant
from tests.conftest import autoregressive
from tests.tasks.test_image_generation import logged

# Two words of 1 and 3 symbols out of 0 ... 3; 4 separates, 5 pads.
BATCH = torch.tensor([[2, 4, 2, 5, 5, 5, 5], [0, 1, 3, 4, 0, 1, 3]], dtype=torch.uint8)


def build(distribution=None) -> Copying:
    distribution = distribution or Categorical(6)
    model = autoregressive(
        partial(LinearAttention, feature_map=Elu), num_values=6, max_length=7,
        num_parameters=distribution.num_parameters, num_layers=1, num_heads=2, model_dim=16,
    )  # fmt: skip
    return Copying(
        model, distribution, optimizer=partial(torch.optim.RAdam, lr=1e-3), scheduler=constant
    ).eval()


def test_the_copy_is_what_stands_after_the_separator():
    assert build().is_copy(BATCH).nonzero().tolist() == [[0, 2], [1, 4], [1, 5], [1, 6]]


def test_a_model_that_knows_nothing_costs_the_logarithm_of_the_values():
    task = build()
    torch.nn.init.zeros_(task.model.head.weight)
    torch.nn.init.zeros_(task.model.head.bias)
    figures = logged(task)
    task.test_step(BATCH, 0)
    assert math.isclose(figures["test/loss"], math.log(6), rel_tol=1e-6)
    assert figures["test/accuracy"] == 0.25  # the first of equals is 0: one of four symbols


def test_words_do_not_count_towards_the_loss():
    """Another symbol in a word changes what is predicted, not what is counted."""
    task = build()
    _, values = task.predict(BATCH)
    assert task._copied(BATCH)[2] == 4
    loss = task.training_step(BATCH, 0) if logged(task) is not None else None
    parameters, _ = task.predict(BATCH)
    picked = [(0, 2), (1, 4), (1, 5), (1, 6)]
    expected = -sum(parameters[b, t].log_softmax(-1)[values[b, t]] for b, t in picked) / 4
    torch.testing.assert_close(loss, expected)


def test_recurrent_copies_start_from_the_word_and_go_on_alone():
    task = build()
    made = copy_words(task, BATCH)
    assert torch.equal(made[:, :2], BATCH[:, :2].long())
    assert torch.equal(made[1, :4], BATCH[1, :4].long())
    first = task.predict(made.to(torch.uint8))[0].argmax(-1)
    for b, t in [(0, 2), (1, 4), (1, 5), (1, 6)]:
        assert made[b, t] == first[b, t]


def test_symbols_need_a_categorical_head(raises_one_line):
    with raises_one_line("task/distribution=categorical"):
        build(LogisticMixture(6))
