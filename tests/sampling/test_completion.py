"""Completions are drawn from the model that forward defines."""

import inspect
from functools import partial

import pytest
import torch

from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.sampling import (
    CompiledStepper,
    Prompts,
    RecomputedStepper,
    RecurrentStepper,
    complete,
    complete_in_batches,
    generate,
    greedy,
    log_probabilities,
    prefill,
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


@pytest.fixture
def stepper(model):
    return RecurrentStepper(model)


def completed(stepper, distribution, values, known, *, seed=0, rows=None, sample=None):
    """Prefill and complete in one go, each sequence once unless `rows` says otherwise."""
    rows = range(len(values)) if rows is None else rows
    noise = uniform_noise(distribution, seed=seed, indices=range(len(rows)), length=LENGTH)
    start = prefill(stepper, values, known)
    sample = distribution.sample if sample is None else sample
    return complete(stepper, sample, start, torch.tensor(list(rows)), noise)


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
    for stepper in (RecurrentStepper(model), RecomputedStepper(model)):
        assert torch.equal(completed(stepper, distribution, values, known), expected)


def test_a_sequence_is_the_same_at_any_batch_size(stepper, distribution):
    count = 19
    values = torch.randint(0, NUM_VALUES, (count, LENGTH))
    noise = uniform_noise(distribution, seed=3, indices=range(count), length=LENGTH)
    start = prefill(stepper, values, first(5))
    together = complete(stepper, distribution.sample, start, torch.arange(count), noise)
    for batch in (1, 2, 3, 5, 16):
        parts = []
        for i in range(0, count, batch):
            start = prefill(stepper, values[i : i + batch], first(5))
            rows = torch.arange(len(values[i : i + batch]))
            part = noise[i : i + batch]
            parts.append(complete(stepper, distribution.sample, start, rows, part))
        assert torch.equal(torch.cat(parts), together)


@pytest.mark.parametrize("kind", [RecurrentStepper, CompiledStepper])
@pytest.mark.parametrize("known", [0, 1, 5])
def test_outputs_of_wide_layers_are_the_same_at_any_batch_size(kind, known):
    """Whose products are summed in another order where there are few rows."""
    model = autoregressive(
        partial(LinearAttention, feature_map=Elu), num_values=NUM_VALUES, max_length=LENGTH,
        num_layers=2, num_heads=4, model_dim=128, num_parameters=30,
    ).eval()  # fmt: skip
    if kind.unavailable(model):
        pytest.skip(str(kind.unavailable(model)))
    stepper, values = kind(model), torch.randint(0, NUM_VALUES, (40, LENGTH))
    found = {}
    for count in (1, 3, 4, 12, 16, 40):
        seen = []

        def sample(parameters, noise, seen=seen):
            seen.append(parameters[:1].clone())
            return torch.full((len(parameters),), 3)

        start = prefill(stepper, values[:count], first(known))
        complete(stepper, sample, start, torch.arange(count), torch.rand(count, LENGTH, 1))
        found[count] = torch.cat(seen)
    assert all(torch.equal(outputs, found[1]) for outputs in found.values())


def test_forks_of_one_prefill_are_what_prefilling_again_gives(stepper, distribution):
    values = torch.randint(0, NUM_VALUES, (2, LENGTH))
    rows = [1, 0, 1, 1, 0]
    forked = completed(stepper, distribution, values, first(9), rows=rows)
    assert torch.equal(forked, completed(stepper, distribution, values[rows], first(9)))
    assert len(forked.unique(dim=0)) == 5


def test_what_was_prefilled_can_be_completed_twice(stepper, distribution):
    values = torch.randint(0, NUM_VALUES, (3, LENGTH))
    start = prefill(stepper, values, first(9))
    noise = uniform_noise(distribution, seed=0, indices=range(3), length=LENGTH)
    once, twice = (
        complete(stepper, distribution.sample, start, torch.arange(3), noise) for _ in range(2)
    )
    assert torch.equal(once, twice)


def test_a_prompt_is_prefilled_once_and_each_value_is_told(model, distribution, monkeypatch):
    prefills, told = [], []
    prefilled = model.prefill
    monkeypatch.setattr(
        model, "prefill", lambda tokens, state=None: prefills.append(1) or prefilled(tokens, state)
    )
    prompts = Prompts(torch.zeros(1, LENGTH, dtype=torch.long), first(9), n=7)
    assert (prompts.count, prompts.steps) == (7, LENGTH - 9)
    batches = complete_in_batches(
        RecurrentStepper(model), distribution, prompts, batch=3, seed=0, on_value=told.append
    )
    assert [part.numbers for part in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(prefills) == 1
    assert told == [3] * 15 + [3] * 15 + [1] * 15


def test_batches_leave_out_what_is_done(stepper, distribution):
    prompts = Prompts(torch.randint(0, NUM_VALUES, (5, LENGTH)), first(9), n=2)
    options = {"batch": 4, "seed": 3}
    (whole,) = complete_in_batches(stepper, distribution, prompts, batch=64, seed=3)
    assert whole.numbers == list(range(10))
    parts = list(complete_in_batches(stepper, distribution, prompts, done={0, 4, 5, 6}, **options))
    assert [part.numbers for part in parts] == [[1, 2, 3], [7], [8, 9]]
    for part in parts:
        assert torch.equal(part.values, whole.values[part.numbers])


@pytest.mark.parametrize("distribution", [Categorical], indirect=True)
def test_what_is_generated_ends_with_the_last_value_that_has_a_position(
    model, stepper, distribution
):
    values, drawn = torch.arange(7), []
    following = generate(stepper, distribution, values, sample=greedy, n=2, seed=0)
    with pytest.raises(ValueError, match=f"positions for {LENGTH}"):
        drawn.extend(value[0] for value in following)
    whole = torch.cat([values, torch.stack(drawn)])
    assert len(whole) == LENGTH
    parameters = model(model.with_start(whole[None])[:, :-1])
    assert torch.equal(parameters[0, 7:].argmax(-1), whole[7:])


def test_generated_sequences_are_completions_of_nothing(stepper, distribution):
    prompts = Prompts.nothing(LENGTH, 5)
    assert (prompts.count, prompts.steps) == (5, LENGTH)
    (part,) = complete_in_batches(stepper, distribution, prompts, batch=5, seed=0)
    assert len(part.values.unique(dim=0)) == 5


@pytest.mark.parametrize("distribution", [Categorical], indirect=True)
def test_hidden_values_may_differ_between_sequences(model, stepper):
    values = torch.randint(0, NUM_VALUES, (5, LENGTH))
    known = torch.arange(LENGTH) < torch.tensor([9, 3, LENGTH, 20, 3]).unsqueeze(1)
    rows, noise = torch.arange(5), torch.zeros(5, LENGTH, 1)
    drawn = complete(stepper, greedy, prefill(stepper, values, known), rows, noise)
    for i in range(5):
        alone = complete(
            stepper, greedy, prefill(stepper, values[i : i + 1], known[i]), rows[:1], noise[:1]
        )
        assert torch.equal(drawn[i : i + 1], alone)
    parameters = model(model.with_start(drawn)[:, :-1])
    assert torch.equal(drawn, torch.where(known, values, parameters.argmax(-1)))


def test_noise_depends_on_seed_and_index_only(distribution):
    noise = uniform_noise(distribution, seed=3, indices=range(5), length=LENGTH)
    again = uniform_noise(distribution, seed=3, indices=[4], length=LENGTH)
    other = uniform_noise(distribution, seed=4, indices=[4], length=LENGTH)
    assert torch.equal(noise[4:], again)
    assert not torch.equal(again, other)
    assert len({tuple(row.flatten().tolist()) for row in noise}) == 5


def test_given_values_are_kept_and_a_whole_sequence_does_not_change(stepper, distribution):
    values = torch.randint(0, NUM_VALUES, (3, LENGTH))
    assert torch.equal(completed(stepper, distribution, values, first(LENGTH)), values)
    half = completed(stepper, distribution, values, first(12))
    assert torch.equal(half[:, :12], values[:, :12])
    assert not torch.equal(half, values)


def test_numbers_too_large_for_half_precision_are_refused(model, distribution, raises_one_line):
    """What is drawn from NaN is 0, without end."""
    for block in model.stack.blocks:
        block.feedforward[0].weight.data *= 1e6
    stepper = RecurrentStepper(model, "float16")
    values, known = torch.zeros(2, LENGTH, dtype=torch.long), torch.zeros(LENGTH, dtype=torch.bool)
    with raises_one_line("not finite", "float16", "bfloat16"):
        completed(stepper, distribution, values, known)
    drawn = generate(stepper, distribution, values[0, :3], sample=distribution.sample, n=2, seed=0)
    with raises_one_line("not finite", "float16", "bfloat16"):
        next(drawn)


def test_too_few_flags_are_refused(stepper, raises_one_line):
    with raises_one_line("5 flags", f"{LENGTH} values"):
        prefill(stepper, torch.zeros(1, LENGTH, dtype=torch.long), first(5)[:5])


def test_noise_of_other_sequences_is_refused(stepper, distribution, raises_one_line):
    """Rows without noise would draw the first value each time."""
    values = torch.zeros(1, LENGTH, dtype=torch.long)
    start = prefill(stepper, values, torch.arange(LENGTH) < 2)
    unchecked = inspect.unwrap(complete)  # as without the tests' check of shapes
    for count, length in ((1, LENGTH), (3, LENGTH - 1)):
        noise = uniform_noise(distribution, seed=0, indices=range(count), length=length)
        with raises_one_line(f"Noise of [{count}, {length}]", f"these are [3, {LENGTH}]"):
            unchecked(stepper, distribution.sample, start, torch.tensor([0, 0, 0]), noise)


def test_a_model_in_training_is_refused(model, raises_one_line):
    """Dropout would make its samples, and what it says of a sequence, another each time."""
    model.train()
    with raises_one_line("train() mode", "eval()"):
        RecurrentStepper(model)
    with raises_one_line("train() mode"):
        log_probabilities(model, Categorical(NUM_VALUES), torch.zeros(1, 3, dtype=torch.long))
