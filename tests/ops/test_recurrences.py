"""`decayed` and `delta` against their own steps, whatever is cut into segments and chunks."""

from functools import partial

import pytest
import torch

from linear_transformers.ops import chunks
from linear_transformers.ops.decayed import decayed, decayed_over_piece, decayed_step
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


@pytest.mark.parametrize("before", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FORMS)
def test_a_state_of_another_type_becomes_that_of_the_inputs(name, before):
    whole, _ = FORMS[name]
    after = torch.float32 if before == torch.float64 else torch.float64
    inputs, state = inputs_of(name, 9, 1), torch.randn(B, H, C, M, dtype=torch.float64)
    expected = whole(*inputs, state=state)
    found = whole(*(x.to(after) for x in inputs), state=state.to(before))
    assert [x.dtype for x in found] == [after, after]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("hard", [-1e3, -1e5, -torch.inf])
@pytest.mark.parametrize("name", FORMS)
def test_what_follows_a_decay_to_nothing_is_exact(name, hard):
    """Running sums that hold it have few digits left for the decays that come after it."""
    whole, step = FORMS[name]
    inputs = inputs_of(name, 65, 1)
    mild = -0.01 * torch.rand_like(inputs[-1])
    inputs[-1] = torch.where(torch.rand_like(mild) < 0.2, hard, mild)
    inputs, state = [x.float() for x in inputs], torch.randn(B, H, C, M)
    found = results(lambda x, past: whole(*x, state=past), inputs, state)
    expected = results(partial(by_steps, step), inputs, state)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_piece_after_a_decay_to_nothing_is_exact():
    _, k, v, log_decay = inputs_of("decayed", 65, 1)
    log_decay = -0.01 * torch.rand_like(log_decay)
    log_decay[:, 20] = -1e5
    expected = decayed_over_piece(k, v, log_decay)
    found = decayed_over_piece(k.float(), v.float(), log_decay.float())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, check_dtype=False)


def test_the_state_after_no_positions_is_a_copy():
    """Whoever steps in place would change the past."""
    q, k, v, log_decay = (x[:, :0] for x in inputs_of("decayed", 3, 1))
    state = torch.ones(len(q), q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype)
    _, after = decayed(q, k, v, log_decay, state=state)
    torch.testing.assert_close(after, state)
    assert after.data_ptr() != state.data_ptr()
