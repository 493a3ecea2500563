"""The loop over steps draws from the model that forward defines."""

from functools import partial

import pytest
import torch

from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.sampling import (
    Recomputed,
    complete,
    largest_step_difference,
    read,
    uniform_noise,
)
from tests.conftest import autoregressive

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
    return autoregressive(
        attention, num_values=NUM_VALUES, max_length=LENGTH, num_layers=2, num_heads=4,
        model_dim=64, num_parameters=distribution.num_parameters,
    ).eval()  # fmt: skip


def completed(model, distribution, values, known, *, seed=0, rows=None, sample=None):
    """Read and continue in one go, each sequence once unless `rows` says otherwise."""
    rows = range(len(values)) if rows is None else rows
    noise = uniform_noise(distribution, seed=seed, indices=range(len(rows)), length=LENGTH)
    prompt = read(model, values, known)
    return complete(
        model, distribution.sample if sample is None else sample, prompt,
        torch.tensor(list(rows)), noise,
    )  # fmt: skip


def first(count: int):
    """The first so many positions are given."""
    return torch.arange(LENGTH) < count


@pytest.mark.parametrize("given", ["nothing", "a prefix", "islands", "all but the first"])
def test_recurrent_sampling_draws_what_forward_would(model, distribution, given):
    """Recompute everything with forward for each value, as one samples without a state."""
    values = torch.randint(0, NUM_VALUES, (4, LENGTH))
    known = {
        "nothing": first(0), "a prefix": first(9), "all but the first": ~first(1),
        "islands": first(3) | (torch.arange(LENGTH) % 5 == 1),
    }[given]  # fmt: skip
    noise = uniform_noise(distribution, seed=0, indices=range(4), length=LENGTH)
    expected = torch.where(known, values, -1)
    with torch.no_grad():
        for i in range(LENGTH):
            if not known[i]:
                parameters = model(model.with_start(expected[:, :i]))[:, -1]
                expected[:, i] = distribution.sample(parameters, noise[:, i])
    assert torch.equal(completed(model, distribution, values, known), expected)
    recomputed = completed(Recomputed(model), distribution, values, known)
    assert torch.equal(recomputed, expected)


def test_an_image_is_the_same_at_any_batch_size(model, distribution):
    count = 19
    values = torch.randint(0, NUM_VALUES, (count, LENGTH))
    noise = uniform_noise(distribution, seed=3, indices=range(count), length=LENGTH)
    together = complete(
        model, distribution.sample, read(model, values, first(5)), torch.arange(count), noise
    )
    for batch in (1, 2, 3, 5, 16):
        parts = []
        for i in range(0, count, batch):
            prompt = read(model, values[i : i + batch], first(5))
            rows = torch.arange(len(values[i : i + batch]))
            parts.append(complete(model, distribution.sample, prompt, rows, noise[i : i + batch]))
        assert torch.equal(torch.cat(parts), together)


def test_forks_of_one_prompt_are_what_reading_it_again_gives(model, distribution):
    values = torch.randint(0, NUM_VALUES, (2, LENGTH))
    rows = [1, 0, 1, 1, 0]
    forked = completed(model, distribution, values, first(9), rows=rows)
    assert torch.equal(forked, completed(model, distribution, values[rows], first(9)))
    assert len(forked.unique(dim=0)) == 5


def test_a_prompt_can_be_continued_twice(model, distribution):
    values = torch.randint(0, NUM_VALUES, (3, LENGTH))
    prompt = read(model, values, first(9))
    noise = uniform_noise(distribution, seed=0, indices=range(3), length=LENGTH)
    once, twice = (
        complete(model, distribution.sample, prompt, torch.arange(3), noise) for _ in range(2)
    )
    assert torch.equal(once, twice)


def test_reading_happens_once_and_each_value_is_told(model, distribution, monkeypatch):
    reads, told = [], []
    prefill = model.prefill
    monkeypatch.setattr(
        model, "prefill", lambda tokens, state=None: reads.append(1) or prefill(tokens, state)
    )
    prompt = read(model, torch.zeros(1, LENGTH, dtype=torch.long), first(9))
    noise = uniform_noise(distribution, seed=0, indices=range(7), length=LENGTH)
    for part in noise.split(3):
        rows = torch.zeros(len(part), dtype=torch.long)
        complete(model, distribution.sample, prompt, rows, part, on_value=lambda: told.append(1))
    assert len(reads) == 1
    assert len(told) == 3 * (LENGTH - 9)


def test_noise_depends_on_seed_and_index_only(distribution):
    noise = uniform_noise(distribution, seed=3, indices=range(5), length=LENGTH)
    again = uniform_noise(distribution, seed=3, indices=[4], length=LENGTH)
    other = uniform_noise(distribution, seed=4, indices=[4], length=LENGTH)
    assert torch.equal(noise[4:], again)
    assert not torch.equal(again, other)
    assert len({tuple(row.flatten().tolist()) for row in noise}) == 5


def test_what_is_given_is_kept_and_a_whole_image_changes_nothing(model, distribution):
    values = torch.randint(0, NUM_VALUES, (3, LENGTH))
    assert torch.equal(completed(model, distribution, values, first(LENGTH)), values)
    half = completed(model, distribution, values, first(12))
    assert torch.equal(half[:, :12], values[:, :12])
    assert not torch.equal(half, values)


def test_too_few_flags_are_refused(model, raises_one_line):
    with raises_one_line("5 flags", f"{LENGTH} values"):
        read(model, torch.zeros(1, LENGTH, dtype=torch.long), first(5)[:5])


def test_the_check_sees_a_step_that_differs_from_forward(model, monkeypatch):
    values = torch.randint(0, NUM_VALUES, (2, LENGTH))
    assert largest_step_difference(model, values) < 1e-5
    attention = model.stack.blocks[1].attention
    step = attention.step
    monkeypatch.setattr(attention, "step", lambda q, k, v, state: step(q, k, 1.01 * v, state))
    assert largest_step_difference(model, values) > 1e-4
