"""The loop over steps draws from the model that forward defines."""

from functools import partial

import pytest
import torch

from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.sampling import complete, largest_step_difference, uniform_noise

LENGTH, NUM_VALUES = 24, 17


@pytest.fixture(params=["linear", "softmax"])
def attention(request):
    return {"linear": partial(LinearAttention, feature_map=Elu), "softmax": SoftmaxAttention}[
        request.param
    ]


@pytest.fixture(params=[LogisticMixture, Categorical])
def distribution(request):
    return request.param(NUM_VALUES)


@pytest.fixture
def model(attention, distribution):
    return AutoregressiveTransformer(
        attention, num_values=NUM_VALUES, max_length=LENGTH, num_layers=2, num_heads=4,
        model_dim=64, num_parameters=distribution.num_parameters,
    ).eval()  # fmt: skip


def test_recurrent_sampling_draws_what_forward_would(model, distribution):
    """Recompute everything with forward for each value, as one samples without a state."""
    prefix = torch.randint(0, NUM_VALUES, (4, 9))
    noise = uniform_noise(distribution, seed=1, indices=range(4), length=LENGTH)
    values = prefix
    with torch.no_grad():
        for i in range(9, LENGTH):
            parameters = model(model.with_start(values))[:, -1]
            new = distribution.sample(parameters, noise[:, i])
            values = torch.cat([values, new.unsqueeze(1)], dim=1)
    assert torch.equal(complete(model, distribution, prefix, noise), values)


def test_an_image_is_the_same_at_any_batch_size(model, distribution):
    count = 19
    prefix = torch.randint(0, NUM_VALUES, (count, 5))
    noise = uniform_noise(distribution, seed=3, indices=range(count), length=LENGTH)
    together = complete(model, distribution, prefix, noise)
    for batch in (1, 2, 3, 5, 16):
        parts = [
            complete(model, distribution, prefix[i : i + batch], noise[i : i + batch])
            for i in range(0, count, batch)
        ]
        assert torch.equal(torch.cat(parts), together)


def test_noise_depends_on_seed_and_index_only(distribution):
    noise = uniform_noise(distribution, seed=3, indices=range(5), length=LENGTH)
    again = uniform_noise(distribution, seed=3, indices=[4], length=LENGTH)
    other = uniform_noise(distribution, seed=4, indices=[4], length=LENGTH)
    assert torch.equal(noise[4:], again)
    assert not torch.equal(again, other)
    assert len({tuple(row.flatten().tolist()) for row in noise}) == 5


def test_the_prefix_is_kept_and_a_whole_one_changes_nothing(model, distribution):
    values = torch.randint(0, NUM_VALUES, (3, LENGTH))
    noise = uniform_noise(distribution, seed=0, indices=range(3), length=LENGTH)
    assert torch.equal(complete(model, distribution, values, noise), values)
    half = complete(model, distribution, values[:, :12], noise)
    assert torch.equal(half[:, :12], values[:, :12])
    assert not torch.equal(half, values)


def test_generation_needs_no_prefix(model, distribution):
    noise = uniform_noise(distribution, seed=0, indices=range(3), length=LENGTH)
    values = complete(model, distribution, torch.zeros(3, 0, dtype=torch.long), noise)
    assert values.shape == (3, LENGTH)
    assert 0 <= values.min() <= values.max() < NUM_VALUES


def test_too_long_a_prefix_is_refused(model, distribution, raises_one_line):
    noise = uniform_noise(distribution, seed=0, indices=range(1), length=4)
    with raises_one_line("5 values", "completed to 4"):
        complete(model, distribution, torch.zeros(1, 5, dtype=torch.long), noise)


def test_the_check_sees_a_step_that_differs_from_forward(model, monkeypatch):
    values = torch.randint(0, NUM_VALUES, (2, LENGTH))
    assert largest_step_difference(model, values) < 1e-5
    step = model.blocks[1].step
    monkeypatch.setattr(model.blocks[1], "step", lambda x, state: step(1.01 * x, state))
    assert largest_step_difference(model, values) > 1e-4
