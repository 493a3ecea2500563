"""`decayed` and `delta` against their own steps, whatever is cut into segments and chunks."""

from functools import partial

import pytest
import torch

from linear_transformers.ops import chunks
from linear_transformers.ops.decayed import decayed, decayed_step
from linear_transformers.ops.delta import delta, delta_step

B, H, C, M = 2, 3, 5, 4
FORMS = {"decayed": (decayed, decayed_step), "delta": (delta, delta_step)}


def inputs_of(name: str, t: int, decays: int) -> list[torch.Tensor]:
    torch.manual_seed(t)
    q, k, v = (torch.randn(B, t, H, width, dtype=torch.float64) for width in (C, C, M))
    strength = torch.rand(B, t, H, 1, dtype=torch.float64)
    log_decay = -4.9 * torch.rand(B, t, H, decays, dtype=torch.float64)
    k = torch.nn.functional.normalize(k, dim=-1)
    return [q, k, v, *([strength] if name == "delta" else []), log_decay]


def by_steps(step, inputs, state):
    outputs = []
    for inputs_i in zip(*(x.unbind(1) for x in inputs), strict=True):
        output, state = step(*inputs_i, state)
        outputs.append(output)
    return torch.stack(outputs, dim=1), state


def results(run, inputs, state):
    """Outputs, the last state, and the gradients of everything by both."""
    given = [x.clone().requires_grad_() for x in (*inputs, state)]
    outputs, after = run(given[:-1], given[-1])
    torch.manual_seed(0)
    weights = (torch.randn(x.shape, dtype=x.dtype) for x in (outputs, after))  # in any layout
    loss = sum((x * w).sum() for x, w in zip((outputs, after), weights, strict=True))
    return outputs, after, *torch.autograd.grad(loss, given)


@pytest.mark.parametrize("positions", [1, 16, 10_000])
@pytest.mark.parametrize("t", [1, 15, 16, 17, 65])
@pytest.mark.parametrize("decays", [1, C])
@pytest.mark.parametrize("name", FORMS)
def test_segments_and_chunks_do_not_change_what_steps_compute(
    name, decays, t, positions, monkeypatch
):
    monkeypatch.setattr(chunks, "CACHED_ROWS", positions * B * H)
    whole, step = FORMS[name]
    inputs = inputs_of(name, t, decays)
    state = torch.randn(B, H, C, M, dtype=torch.float64)
    expected = results(partial(by_steps, step), inputs, state)
    for size in (3, 16):
        found = results(lambda x, past, n=size: whole(*x, state=past, chunk_size=n), inputs, state)
        torch.testing.assert_close(found, expected)
    empty = torch.zeros_like(state)
    torch.testing.assert_close(whole(*inputs, chunk_size=16), by_steps(step, inputs, empty))


@pytest.mark.parametrize("name", FORMS)
def test_the_fastest_decays_stay_within_float32(name):
    """exp(-160) in a chunk: neither outputs nor gradients overflow, or lose the last position."""
    whole, step = FORMS[name]
    inputs = [x.float() for x in inputs_of(name, 65, C)]
    inputs[-1] = torch.full_like(inputs[-1], -5.0)
    state = torch.randn(B, H, C, M)
    found = results(lambda x, past: whole(*x, state=past, chunk_size=32), inputs, state)
    torch.testing.assert_close(
        found, results(partial(by_steps, step), inputs, state), rtol=1e-4, atol=1e-5
    )
