"""What counts as a copy, by hand."""

import math
from functools import partial

import numpy as np
import torch

from linear_transformers.attention import LinearAttention
from linear_transformers.data import Copies, CopyShape, Splits
from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.models import Transformer
from linear_transformers.tasks import Copying

# Two words of 1 and 3 symbols out of 0 ... 3; 4 separates, 5 pads.
BATCH = torch.tensor([[2, 4, 2, 5, 5, 5, 5], [0, 1, 3, 4, 0, 1, 3]], dtype=torch.uint8)
COPIED = [(0, 2), (1, 4), (1, 5), (1, 6)]


def build(distribution=Categorical) -> Copying:
    attention = partial(LinearAttention, feature_map=Elu)
    mixer = partial(MultiHeadAttention, attention=attention)
    stack = partial(Transformer, mixer, num_layers=1, num_heads=2, model_dim=16)
    task = Copying(CopyShape(7, 4), stack, distribution=distribution)
    task.model.eval()
    return task


def test_the_copy_is_what_stands_after_the_separator():
    assert [tuple(place) for place in build().is_copy(BATCH).nonzero().tolist()] == COPIED


def test_a_model_that_knows_nothing_costs_the_logarithm_of_the_values():
    task = build()
    torch.nn.init.zeros_(task.model.head.weight)
    torch.nn.init.zeros_(task.model.head.bias)
    figures = task.judge(task.statistics(BATCH))
    assert math.isclose(figures["loss"], math.log(6), rel_tol=1e-6)
    assert figures["accuracy"] == 0.25  # the first of equals is 0: one of four symbols


def test_words_do_not_count_towards_the_loss():
    """Another symbol in a word changes what is predicted, not what is counted."""
    task = build()
    parameters, values = task.predict(BATCH)
    assert task.statistics(BATCH)["symbols"] == 4
    loss = task.loss(BATCH).mean
    expected = -sum(parameters[b, t].log_softmax(-1)[values[b, t]] for b, t in COPIED) / 4
    torch.testing.assert_close(loss, expected)
    assert task.progress(loss) == {"loss": loss}


def test_recurrent_copies_start_from_the_word_and_go_on_alone(monkeypatch):
    task = build()
    source = Copies(2, max_length=7, num_symbols=4, num_sequences=2, num_held_out=2)
    monkeypatch.setattr(source, "load", lambda: Splits(*[BATCH.numpy().astype(np.uint8)] * 3))
    rows, whole = task.copies(source, 2)
    assert [row["word"] for row in rows] == ["2", "013"]
    made = BATCH.clone()
    for (b, t), symbol in zip(COPIED, "".join(row["copy"] for row in rows), strict=True):
        made[b, t] = int(symbol, 16)
    first = task.predict(made)[0].argmax(-1)
    assert all(made[b, t] == first[b, t] for b, t in COPIED)
    right = [row["copy"] == row["word"] for row in rows]
    assert whole == sum(right) / 2


def test_symbols_need_a_categorical_head(raises_one_line):
    with raises_one_line("task/distribution=categorical"):
        build(LogisticMixture)
