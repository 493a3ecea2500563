"""Linear attention with rotary positions is that of RoFormer (Su et al., 2021), eq. 19."""

from functools import partial

import pytest
import torch
from torch.nn.functional import elu

from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.ops.rotary import Rotation
from linear_transformers.testing import HEADS, WIDTH, random_qkv

START, LENGTH, EPS = 3, 37, 1e-3
attend = partial(LinearAttention, HEADS, WIDTH, feature_map=Elu, eps=EPS)


def turned(x: torch.Tensor) -> torch.Tensor:
    """Pairs of features as complex numbers, turned by their position."""
    pairs = torch.complex(*x.chunk(2, dim=-1))
    rates = 10_000.0 ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    angles = torch.arange(START, START + LENGTH).unsqueeze(1) * rates
    return pairs * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def defined(q, k, v, seen):
    """By all weights: the numerator's are of turned features, the denominator's are not."""
    q, k = elu(q) + 1, elu(k) + 1
    above = torch.einsum("bihc,bjhc->bhij", turned(q), turned(k).conj()).real * seen
    below = torch.einsum("bihc,bjhc->bhij", q, k) * seen
    return torch.einsum("bhij,bjhm->bihm", above / (below.sum(-1, keepdim=True) + EPS), v)


def stepped(attention, q, k, v):
    outputs, state = [], attention.init_state(len(q), dtype=torch.float64)
    for i in range(LENGTH):
        rotation = Rotation(torch.tensor([START + i]))
        output, state = attention.step(q[:, i], k[:, i], v[:, i], state, rotation=rotation)
        outputs.append(output)
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("form", ["parallel", "recurrent", "bidirectional"])
def test_only_the_numerator_is_turned(form):
    """Outputs and gradients."""
    inputs = [x.requires_grad_() for x in random_qkv(LENGTH)]
    attention, rotation = attend(), Rotation(torch.arange(START, START + LENGTH))
    run = {
        "parallel": partial(attention, rotation=rotation),
        "recurrent": partial(stepped, attention),
        "bidirectional": partial(attention.bidirectional, rotation=rotation),
    }[form]
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.float64)
    seen = seen if form == "bidirectional" else seen.tril()

    def results(outputs):
        return outputs, *torch.autograd.grad(outputs.square().sum(), inputs)

    torch.testing.assert_close(results(run(*inputs)), results(defined(*inputs, seen)))


@pytest.mark.parametrize("types", [("float64", "float32"), ("float32", "float64")], ids="-".join)
def test_a_state_or_memory_of_another_type_becomes_that_of_the_inputs(types):
    before, after = (getattr(torch, name) for name in types)
    inputs, attention = random_qkv(LENGTH), attend()
    rotation, near = Rotation(torch.arange(LENGTH)), {"rtol": 1e-4, "atol": 1e-4}
    expected = attention(*inputs, rotation=rotation)
    _, state = attention.prefill(
        *(x[:, :5].to(before) for x in inputs), rotation=Rotation(torch.arange(5))
    )
    later = Rotation(torch.arange(5, LENGTH))
    found, _ = attention.prefill(*(x[:, 5:].to(after) for x in inputs), state, rotation=later)
    assert found.dtype == after
    torch.testing.assert_close(found, expected[:, 5:], check_dtype=False, **near)
    q, k, v = inputs
    read = attention.read(q.to(after), attention.summarize(k.to(before), v.to(before)))
    assert read.dtype == after
    expected = attention.bidirectional(*inputs)
    torch.testing.assert_close(read, expected, check_dtype=False, **near)


@pytest.mark.parametrize("place", [65_536, 10**6, 2**24 + 1])
def test_far_positions_are_turned_exactly_in_float32(place):
    x, rotation = torch.randn(1, 1, 1, WIDTH), Rotation(torch.tensor([place]))
    torch.testing.assert_close(rotation(x).double(), rotation(x.double()), rtol=0, atol=1e-6)
