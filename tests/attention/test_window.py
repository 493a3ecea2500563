"""What a window promises beyond the contract: rows of any pasts, and its cost."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from linear_transformers.attention import SoftmaxAttention, WindowAttention
from linear_transformers.testing import HEADS, WIDTH, random_qkv, stepped

WINDOW = 7


def build(window: int = WINDOW, **options) -> WindowAttention:
    """Of heads that share one head of keys and values."""
    return WindowAttention(HEADS, WIDTH, window=window, num_key_heads=1, **options).double()


def inputs_of(t: int, b: int = 2) -> tuple[torch.Tensor, ...]:
    q, k, v = random_qkv(t, b=b)
    return q, k[:, :, :1], v[:, :, :1]


def after(attention: WindowAttention, lengths: tuple[int, ...]):
    """Return the state of rows of which each has read so many positions, and what they read."""
    inputs = [inputs_of(length, b=1) for length in lengths]
    empty = attention.init_state(1, dtype=torch.float64)
    states = [attention.prefill(*qkv, empty)[1] if qkv[0].shape[1] else empty for qkv in inputs]
    return type(empty)(*map(torch.cat, zip(*states, strict=True))), inputs


@pytest.mark.parametrize("count", [1, 2, 6, 7, 8, 20])
def test_rows_go_on_from_pasts_of_any_lengths(count):
    """In pieces and in steps, as each does alone; the first has none."""
    attention = build()
    lengths = (0, 3, 7, 16)
    state, pasts = after(attention, lengths)
    rest = inputs_of(count, b=len(lengths))
    together, reached = attention.prefill(*rest, state)
    torch.testing.assert_close(stepped(attention, rest, state), together)
    for i, (past, length) in enumerate(zip(pasts, lengths, strict=True)):
        whole = [torch.cat([a, b[i : i + 1]], dim=1) for a, b in zip(past, rest, strict=True)]
        torch.testing.assert_close(together[i : i + 1], attention(*whole)[:, length:])
    assert reached.written.tolist() == [length + count for length in lengths]


def test_slots_that_were_not_written_are_never_seen():
    attention = build()
    state, _ = after(attention, (0, 3))
    spoilt = state._replace(keys=state.keys.clone(), values=state.values.clone())
    for i, written in enumerate(state.written.tolist()):
        spoilt.keys[i, :, written:], spoilt.values[i, :, written:] = 100.0, 1e6
    rest = inputs_of(20)
    expected, _ = attention.prefill(*rest, state)
    torch.testing.assert_close(attention.prefill(*rest, spoilt)[0], expected)
    torch.testing.assert_close(stepped(attention, rest, spoilt), expected)


@pytest.mark.parametrize("t", [1, 64, 65])
def test_a_window_of_all_positions_is_softmax_attention(t):
    softmax = SoftmaxAttention(HEADS, WIDTH, scale=0.7, num_key_heads=1)
    inputs = inputs_of(t)
    torch.testing.assert_close(build(t, scale=0.7)(*inputs), softmax(*inputs))


def test_its_cost_is_proportional_to_the_length():
    attention = build(16).to("meta")
    counted = {attention.forward: [], attention.bidirectional: []}
    for form, costs in counted.items():
        for t in (256, 512):
            with FlopCounterMode(display=False) as counter:
                form(*(x.to("meta") for x in inputs_of(t, b=1)))
            costs.append(counter.get_total_flops())
    first = 2 * 2 * HEADS * 16 * 16 * WIDTH  # the first block, which has none before it
    causal, both_ways = counted.values()
    assert causal[1] + first == 2 * (causal[0] + first)
    assert both_ways[1] == 2 * both_ways[0]


def test_a_step_in_place_moves_nothing_unless_a_gradient_needs_it():
    attention = build()
    state, _ = after(attention, (9, 2))
    inputs = [x[:, 0] for x in inputs_of(1)]
    before = state.keys.clone()
    with torch.enable_grad():
        _, copied = attention.step_in_place(*inputs, state)
    torch.testing.assert_close(state.keys, before, rtol=0, atol=0)
    with torch.no_grad():
        _, written = attention.step_in_place(*inputs, state)
    assert written.keys is state.keys
    torch.testing.assert_close(written, copied)
    with torch.inference_mode():
        made, _ = after(attention, (9, 2))
    with torch.no_grad():  # outside of it, torch lets nobody write what was made in it
        _, going_on = attention.step_in_place(*inputs, made)
    torch.testing.assert_close(going_on, copied)
