"""The loop with Triton's step draws what the model draws: on a GPU as a captured graph, else turn
by turn in Triton's interpreter."""

from functools import partial

import pytest
import torch

from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.feature_maps import Elu, Relu
from linear_transformers.sampling import (
    GraphedDecoder,
    complete,
    largest_step_difference,
    read,
    uniform_noise,
)
from tests.conftest import autoregressive

pytest.importorskip("triton", reason="Triton is not for this system")

LENGTH, NUM_VALUES, BATCH = 6, 17, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def linear(*, feature_map=Elu, scale=1.0, attention=None, **options):
    torch.manual_seed(0)
    attention = attention or partial(LinearAttention, feature_map=feature_map, scale=scale)
    sizes = {"num_parameters": 30, "max_length": LENGTH, "num_layers": 2, "num_heads": 2}
    model = autoregressive(attention, num_values=NUM_VALUES, model_dim=24, **{**sizes, **options})
    return model.eval().to(DEVICE)


def known_first(count: int):
    return torch.arange(LENGTH) < count


def completions(decoder, distribution, values, known, **options):
    prompt = read(decoder, values, known)
    rows = torch.tensor([0, 1, 2, 3, 1])  # one of them twice
    noise = uniform_noise(distribution, seed=0, indices=range(len(rows)), length=LENGTH)
    return complete(decoder, distribution.sample, prompt, rows, noise, **options)


@pytest.mark.parametrize("kernel", ["auto", "chunkwise", "parallel"])
def test_it_goes_on_from_what_any_kernel_read(kernel):
    model = linear(attention=partial(LinearAttention, feature_map=Elu, kernel=kernel))
    values = torch.randint(NUM_VALUES, (BATCH, LENGTH), device=DEVICE)
    assert largest_step_difference(model, values, GraphedDecoder(model)) < 1e-5


@pytest.mark.parametrize("given", [(), (0, 1, 2), (1, 4), (0, 5), tuple(range(LENGTH))])
def test_it_draws_what_the_model_draws(given):
    model, distribution = linear(), LogisticMixture(NUM_VALUES)
    values = torch.randint(NUM_VALUES, (BATCH, LENGTH))
    known = torch.zeros(LENGTH, dtype=torch.bool)
    known[list(given)] = True
    places: list[int] = []
    drawn = completions(
        GraphedDecoder(model), distribution, values, known, on_value=lambda: places.append(0)
    )
    expected = completions(model, distribution, values, known)
    assert torch.equal(drawn, expected)
    hidden = (~known).nonzero().flatten().tolist()
    assert len(places) == (hidden[-1] - hidden[0] + 1 if hidden else 0)


def test_a_turn_serves_every_prompt_of_its_size():
    model, distribution = linear(num_parameters=NUM_VALUES), Categorical(NUM_VALUES)
    decoder = GraphedDecoder(model)
    known, turns = known_first(2), set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        values = torch.randint(NUM_VALUES, (BATCH, LENGTH))
        prompt, plain = (read(x, values, known) for x in (decoder, model))
        noise = uniform_noise(distribution, seed=seed, indices=range(BATCH), length=LENGTH)
        rows = torch.arange(BATCH)
        drawn = complete(decoder, distribution.sample, prompt, rows, noise)
        turns.add(decoder._turn)
        # The prompt can be continued again: its state was not used up.
        assert torch.equal(complete(decoder, distribution.sample, prompt, rows, noise), drawn)
        assert torch.equal(complete(model, distribution.sample, plain, rows, noise), drawn)
    assert len(turns) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "pre", "positions": "added"},
        {"positions": "learned", "scale": 0.5},
        {"positions": "none", "activation": "gelu"},
        {"feature_map": Relu},
    ],
)
def test_it_steps_as_the_model_does(options):
    model = linear(**options)
    values = torch.randint(NUM_VALUES, (BATCH, LENGTH), device=DEVICE)
    decoder = GraphedDecoder(model)
    assert largest_step_difference(model, values, decoder) < 1e-5
    drawn = completions(decoder, LogisticMixture(NUM_VALUES), values.cpu(), known_first(2))
    assert torch.equal(
        drawn, completions(model, LogisticMixture(NUM_VALUES), values.cpu(), known_first(2))
    )


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: linear(attention=SoftmaxAttention), "linear attention"),
        (lambda: linear().double(), "float64"),
        (lambda: linear(max_length=None), "bound"),
    ],
)
def test_where_there_is_none_it_is_said(model, reason, raises_one_line):
    with raises_one_line("step in Triton", reason):
        GraphedDecoder(model())
