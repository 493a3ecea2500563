"""The promises that every attention keeps, as checks that anybody can run on their own.

    from linear_transformers.testing import check_attention
    check_attention(MyAttention)

or, with pytest, one test a promise:

    @pytest.mark.parametrize("promise", promises_of(MyAttention), ids=name_of)
    def test_my_attention(promise):
        promise(MyAttention)

A promise is a function of an attention's factory, which is called with `num_heads` and `head_dim`.
It raises an AssertionError where the promise is broken. All of them are exact: they compare in
float64, or state how many units in the last place may be lost.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from linear_transformers.attention import AttentionFactory, CausalAttention, KeyValueCache

Promise = Callable[[AttentionFactory], None]

HEADS, WIDTH = 3, 8
LENGTHS = (1, 2, 63, 64, 65)
FULL_LENGTH = 3072  # of an image of CIFAR-10
LONG, SHORT = 784, 65  # steps in half precision


def promises_of(make: AttentionFactory) -> list[Promise]:
    """Return the promises that an attention has to keep: those of all, and those it declares.

    Args:
        make: The factory of the attention.
    """
    attention = make(HEADS, WIDTH)
    found = list(OF_ALL)
    for name, promises in DECLARED.items():
        found += promises if getattr(attention, name) else ()
    return found


def check_attention(make: AttentionFactory) -> None:
    """Check that an attention keeps its promises.

    Args:
        make: The factory of the attention.

    Raises:
        AssertionError: It breaks one.
    """
    for promise in promises_of(make):
        torch.manual_seed(0)
        promise(make)


def name_of(promise: Promise) -> str:
    """Return a promise in words."""
    return promise.__name__.replace("_", " ")


def random_qkv(
    t: int, *, b: int = 2, h: int = HEADS, d: int = WIDTH, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random queries, keys and values [b, t, h, d]; the seed is t."""
    generator = torch.Generator().manual_seed(t)
    q, k, v = (torch.randn(b, t, h, d, generator=generator, dtype=dtype) for _ in range(3))
    return q, k, v


def stepped(attention: CausalAttention[Any], qkv: Iterable[Tensor], state: Any) -> Tensor:
    """Return the outputs of `step` at each position, from a state on."""
    outputs = []
    for q_i, k_i, v_i in zip(*(x.unbind(1) for x in qkv), strict=True):
        output, state = attention.step(q_i, k_i, v_i, state)
        outputs.append(output)
    return torch.stack(outputs, dim=1)


def as_revealed(attention: CausalAttention[Any], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return every output as `forward` gives it when its position is the last one there is.

    Where the future is invisible that is `forward` itself.
    """
    if attention.exactly_causal:
        return attention(q, k, v)
    ends = range(1, q.shape[1] + 1)
    return torch.stack([attention(*(x[:, :i] for x in (q, k, v)))[:, -1] for i in ends], dim=1)


def tensors(state: Any) -> list[Tensor]:
    """Return every tensor a state reads from, as it reads it."""
    if isinstance(state, KeyValueCache):  # it shows its part of a shared buffer
        return [state.keys, state.values]
    parts = (state,) if isinstance(state, Tensor) else state
    return [x for x in parts if isinstance(x, Tensor)]


def stepping_gives_what_forward_gives(make: AttentionFactory) -> None:
    attention = _exact(make)
    for t in LENGTHS:
        q, k, v = random_qkv(t)
        with torch.no_grad():
            outputs = stepped(attention, (q, k, v), _empty(attention))
            torch.testing.assert_close(outputs, as_revealed(attention, q, k, v))


def steps_after_a_prefill_give_what_forward_gives(make: AttentionFactory) -> None:
    attention = _exact(make)
    for known in (1, 17, 64):
        q, k, v = random_qkv(65)
        first, state = attention.prefill(q[:, :known], k[:, :known], v[:, :known])
        rest = stepped(attention, (x[:, known:] for x in (q, k, v)), state)
        torch.testing.assert_close(first, attention(q[:, :known], k[:, :known], v[:, :known]))
        torch.testing.assert_close(rest, as_revealed(attention, q, k, v)[:, known:])


def a_prefill_continues_a_state(make: AttentionFactory) -> None:
    attention = _exact(make)
    q, k, v = random_qkv(65)
    _, state = attention.prefill(q[:, :20], k[:, :20], v[:, :20])
    second, state = attention.prefill(q[:, 20:50], k[:, 20:50], v[:, 20:50], state)
    third, _ = attention.prefill(q[:, 50:], k[:, 50:], v[:, 50:], state)
    torch.testing.assert_close(second, attention(*(x[:, :50] for x in (q, k, v)))[:, 20:])
    torch.testing.assert_close(third, attention(q, k, v)[:, 50:])


def selected_rows_go_on_as_they_would_have(make: AttentionFactory) -> None:
    """Twice the same row is a fork; the state that was selected from stays as it is."""
    attention = _exact(make)
    for capacity in (0, 64):
        q, k, v = random_qkv(40)
        whole = as_revealed(attention, q, k, v)
        start = _empty(attention, capacity=capacity)
        _, state = attention.prefill(q[:, :21], k[:, :21], v[:, :21], start)
        rows = torch.tensor([1, 0, 1])
        rest = (x[:, 21:] for x in (q, k, v))
        forks = (x[rows, 21:] for x in (q, k, v))
        with torch.no_grad():
            forked = stepped(attention, forks, attention.select(state, rows))
            torch.testing.assert_close(forked, whole[rows, 21:])
            torch.testing.assert_close(stepped(attention, rest, state), whole[:, 21:])


def a_step_leaves_the_state_it_was_given_untouched(make: AttentionFactory) -> None:
    """Two continuations of one state, taken in turn, do not disturb each other."""
    attention = _exact(make)
    for capacity, gradients in ((0, False), (0, True), (64, False), (64, True)):
        q, k, v = random_qkv(40)
        other_q, other_k, other_v = (x.flip(0) for x in (q, k, v))
        with torch.set_grad_enabled(gradients):
            start = _empty(attention, capacity=capacity)
            _, shared = attention.prefill(q[:, :10], k[:, :10], v[:, :10], start)
            kept = [x.clone() for x in tensors(shared)]
            left = right = shared
            outputs = []
            for i in range(10, 40):
                out, left = attention.step(q[:, i], k[:, i], v[:, i], left)
                _, right = attention.step(other_q[:, i], other_k[:, i], other_v[:, i], right)
                outputs.append(out)
        torch.testing.assert_close(tensors(shared), kept, rtol=0, atol=0)
        torch.testing.assert_close(
            torch.stack(outputs, dim=1), as_revealed(attention, q, k, v)[:, 10:]
        )


def a_step_in_place_is_the_step(make: AttentionFactory) -> None:
    attention = make(HEADS, WIDTH).eval()  # kernels may have no float64
    q, k, v = (x.float() for x in random_qkv(5))
    state, expected_state = (attention.init_state(2, dtype=q.dtype) for _ in range(2))
    for i in range(5):
        output, state = attention.step_in_place(q[:, i], k[:, i], v[:, i], state)
        expected, expected_state = attention.step(q[:, i], k[:, i], v[:, i], expected_state)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tensors(state), tensors(expected_state), rtol=1e-4, atol=1e-5)


def the_size_of_the_state_is_what_the_class_declares(make: AttentionFactory) -> None:
    attention = _exact(make)

    def size(t: int) -> int:
        _, state = attention.prefill(*random_qkv(t))
        return sum(x.numel() for x in tensors(state))

    assert (size(200) == size(1)) == attention.constant_state


def gradients_are_those_of_differences(make: AttentionFactory) -> None:
    attention = _exact(make)
    for t in (1, 5):
        inputs = [x.requires_grad_() for x in random_qkv(t, b=1)]
        assert torch.autograd.gradcheck(lambda *x: attention(*x), inputs)


def gradients_flow_through_steps(make: AttentionFactory) -> None:
    attention = _exact(make)
    inputs = [x.requires_grad_() for x in random_qkv(7, b=1)]
    weight = torch.randn(1, 7, HEADS, WIDTH, dtype=torch.float64)
    steps = stepped(attention, inputs, _empty(attention, batch=1, capacity=7))
    ours = gradients((steps * weight).sum(), inputs)
    exact = gradients((as_revealed(attention, *inputs) * weight).sum(), inputs)
    torch.testing.assert_close(ours, exact)


def half_precision_stays_within_rounding_at_full_length(make: AttentionFactory) -> None:
    """Within 2 units in the last place of the largest output, at the length of CIFAR-10."""
    for dtype in (torch.bfloat16, torch.float16):
        half, exact = _rounded(make, 1, 32, dtype)
        q, k, v = (x.to(dtype) for x in random_qkv(FULL_LENGTH, b=1, h=1, d=32))
        with torch.no_grad():
            expected = exact(*(x.double() for x in (q, k, v)))
            outputs = half(q, k, v)
        assert outputs.dtype == dtype
        _assert_rounded(outputs, expected)


def stepping_in_half_precision_stays_within_rounding(make: AttentionFactory) -> None:
    """The state must not forget: 784 steps from half inputs against the float64 definition."""
    for dtype in (torch.bfloat16, torch.float16):
        half, exact = _rounded(make, HEADS, WIDTH, dtype)
        # Where nothing is summed up, nothing is lost with length.
        steps = LONG if half.constant_state else SHORT
        q, k, v = (x.to(dtype) for x in random_qkv(steps, b=1))
        with torch.no_grad():
            outputs = stepped(half, (q, k, v), half.init_state(1, device="cpu", dtype=dtype))
            expected = as_revealed(exact, *(x.double() for x in (q, k, v)))
        _assert_rounded(outputs, expected)


def autocast_does_not_round(make: AttentionFactory) -> None:
    """Outputs under autocast are those without it, in the type of the inputs."""
    attention = make(HEADS, WIDTH).eval()
    q, k, v = (x.float() for x in random_qkv(33))

    def results() -> tuple[Tensor, Tensor, Tensor]:
        first, state = attention.prefill(q[:, :20], k[:, :20], v[:, :20])
        rest = stepped(attention, (x[:, 20:] for x in (q, k, v)), state)
        return attention(q, k, v), first, rest

    expected = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(results(), expected)


def evaluation_is_deterministic_and_saved(make: AttentionFactory) -> None:
    attention, again = _exact(make), _exact(make)
    again.load_state_dict(attention.state_dict())
    inputs = random_qkv(65)
    expected = attention(*inputs)
    torch.testing.assert_close(attention(*inputs), expected, rtol=0, atol=0)
    torch.testing.assert_close(again(*inputs), expected, rtol=0, atol=0)


def unequal_lengths_and_empty_sequences_are_refused(make: AttentionFactory) -> None:
    attention = _exact(make)
    q, k, v = random_qkv(5)
    for call in (attention, attention.prefill):
        for queries, keys in ((5, 3), (0, 0)):
            message = "nothing"
            try:
                call(q[:, :queries], k[:, :keys], v[:, :keys])
            except ValueError as error:
                message = str(error)
            assert f"{queries} queries and {keys} keys" in message, message


def the_future_is_invisible(make: AttentionFactory) -> None:
    attention = _exact(make)
    for j in (1, 30, 64):
        inputs = random_qkv(65)
        changed = [x.clone() for x in inputs]
        for x in changed:
            x[:, j:] += torch.randn_like(x[:, j:])
        before, after = attention(*inputs), attention(*changed)
        torch.testing.assert_close(after[:, :j], before[:, :j], rtol=0, atol=1e-12)
        assert not torch.allclose(after[:, j:], before[:, j:])


def a_padded_batch_gives_what_each_sequence_gives_alone(make: AttentionFactory) -> None:
    attention = _exact(make)
    long, short = random_qkv(65, b=1), random_qkv(37, b=1)
    padding = torch.full((1, 28, HEADS, WIDTH), 7.0, dtype=torch.float64)
    batch = [
        torch.cat([a, torch.cat([b, padding], dim=1)]) for a, b in zip(long, short, strict=True)
    ]
    outputs = attention(*batch)
    torch.testing.assert_close(outputs[:1], attention(*long))
    torch.testing.assert_close(outputs[1:, :37], attention(*short))


def constant_values_come_back_unchanged(make: AttentionFactory) -> None:
    """Attention weights sum to one: the check that finds a missing denominator."""
    # 32 wide: of 8 relu features, a first query and key sometimes share none.
    attention = make(HEADS, 32).double().eval()
    q, k, v = random_qkv(65, d=32)
    ones = torch.ones_like(v)
    torch.testing.assert_close(attention(q, k, ones), ones, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        stepped(attention, (q, k, ones), _empty(attention)), ones, atol=1e-4, rtol=0
    )


OF_ALL: tuple[Promise, ...] = (
    stepping_gives_what_forward_gives,
    steps_after_a_prefill_give_what_forward_gives,
    a_prefill_continues_a_state,
    selected_rows_go_on_as_they_would_have,
    a_step_leaves_the_state_it_was_given_untouched,
    a_step_in_place_is_the_step,
    the_size_of_the_state_is_what_the_class_declares,
    gradients_are_those_of_differences,
    gradients_flow_through_steps,
    half_precision_stays_within_rounding_at_full_length,
    stepping_in_half_precision_stays_within_rounding,
    autocast_does_not_round,
    evaluation_is_deterministic_and_saved,
    unequal_lengths_and_empty_sequences_are_refused,
)
# What a class declares to keep: see `CausalAttention`.
DECLARED: dict[str, tuple[Promise, ...]] = {
    "exactly_causal": (
        the_future_is_invisible,
        a_padded_batch_gives_what_each_sequence_gives_alone,
    ),
    "weights_sum_to_one": (constant_values_come_back_unchanged,),
}


def gradients(loss: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Return gradients: zeros where an input is not read, as keys are where they are shared."""
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


def _exact(make: AttentionFactory) -> CausalAttention[Any]:
    return make(HEADS, WIDTH).double().eval()


def _empty(attention: CausalAttention[Any], batch: int = 2, capacity: int = 0) -> Any:
    return attention.init_state(batch, device="cpu", dtype=torch.float64, capacity=capacity)


def _rounded(
    make: AttentionFactory, heads: int, width: int, dtype: torch.dtype
) -> tuple[CausalAttention[Any], CausalAttention[Any]]:
    """Return an attention in half precision, and in float64 with the weights of that."""
    torch.manual_seed(0)  # random directions can be bad ones
    half, exact = make(heads, width).to(dtype).eval(), make(heads, width).double().eval()
    exact.load_state_dict(half.state_dict())
    return half, exact


def _assert_rounded(outputs: Tensor, expected: Tensor) -> None:
    error = (outputs.double() - expected).abs().max() / expected.abs().max()
    assert error < 2 * torch.finfo(outputs.dtype).eps, f"{error:.2e}"
