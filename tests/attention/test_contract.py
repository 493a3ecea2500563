"""The eight promises, for every model in conf/model and every feature map it can take."""

import math

import pytest
import torch
from torch import Tensor

from linear_transformers.attention import CausalAttention, KeyValueCache
from tests.attention.choices import HEADS, WIDTH, build, choices
from tests.attention.definitions import definition
from tests.conftest import random_qkv


def declaring(promise: str) -> list[tuple[str, ...]]:
    """The choices whose class makes a promise that others, by design, do not make."""
    return [choice for choice in choices() if getattr(build(choice), promise)]


@pytest.fixture(params=choices(), ids=" ".join)
def attention(request) -> CausalAttention:
    return build(request.param)


def stepped(attention: CausalAttention, q: Tensor, k: Tensor, v: Tensor, state) -> Tensor:
    outputs = []
    for i in range(q.shape[1]):
        output, state = attention.step(q[:, i], k[:, i], v[:, i], state)
        outputs.append(output)
    return torch.stack(outputs, dim=1)


def empty(attention: CausalAttention, batch: int = 2, **options):
    return attention.init_state(batch, device="cpu", dtype=torch.float64, **options)


def tensors(state) -> list[Tensor]:
    """Every tensor a state reads from, as it reads it."""
    if isinstance(state, KeyValueCache):  # it shows its part of a shared buffer
        return [state.keys, state.values]
    parts = (state,) if isinstance(state, Tensor) else state
    return [x for x in parts if isinstance(x, Tensor)]


@pytest.mark.parametrize("t", [1, 2, 63, 64, 65])
def test_forward_is_the_definition(attention, t):
    q, k, v = random_qkv(t)
    torch.testing.assert_close(attention(q, k, v), definition(attention, q, k, v))


def as_revealed(attention: CausalAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every output as `forward` gives it when its position is the last one there is.

    Where the future is invisible that is `forward` itself.
    """
    if attention.exactly_causal:
        return attention(q, k, v)
    ends = range(1, q.shape[1] + 1)
    return torch.stack([attention(*(x[:, :i] for x in (q, k, v)))[:, -1] for i in ends], dim=1)


@pytest.mark.parametrize("t", [1, 2, 63, 64, 65])
def test_stepping_reproduces_the_parallel_form(attention, t):
    q, k, v = random_qkv(t)
    with torch.no_grad():
        torch.testing.assert_close(
            stepped(attention, q, k, v, empty(attention)), as_revealed(attention, q, k, v)
        )


@pytest.mark.parametrize("known", [1, 17, 64])
def test_prefill_then_stepping_reproduces_the_parallel_form(attention, known):
    q, k, v = random_qkv(65)
    first, state = attention.prefill(q[:, :known], k[:, :known], v[:, :known])
    rest = stepped(attention, q[:, known:], k[:, known:], v[:, known:], state)
    torch.testing.assert_close(first, attention(q[:, :known], k[:, :known], v[:, :known]))
    torch.testing.assert_close(rest, as_revealed(attention, q, k, v)[:, known:])


def test_prefill_continues_a_state(attention):
    q, k, v = random_qkv(65)
    _, state = attention.prefill(q[:, :20], k[:, :20], v[:, :20])
    second, state = attention.prefill(q[:, 20:50], k[:, 20:50], v[:, 20:50], state)
    third, _ = attention.prefill(q[:, 50:], k[:, 50:], v[:, 50:], state)
    torch.testing.assert_close(second, attention(*(x[:, :50] for x in (q, k, v)))[:, 20:])
    torch.testing.assert_close(third, attention(q, k, v)[:, 50:])


@pytest.mark.parametrize("j", [1, 30, 64])
@pytest.mark.parametrize("choice", declaring("exactly_causal"), ids=" ".join)
def test_the_future_is_invisible(choice, j):
    attention = build(choice)
    inputs = random_qkv(65)
    changed = [x.clone() for x in inputs]
    for x in changed:
        x[:, j:] += torch.randn_like(x[:, j:])
    before, after = attention(*inputs), attention(*changed)
    torch.testing.assert_close(after[:, :j], before[:, :j], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, j:], before[:, j:])


@pytest.mark.parametrize("choice", declaring("weights_sum_to_one"), ids=" ".join)
def test_constant_values_come_back_unchanged(choice):
    """The weights sum to one: the test that catches a missing denominator."""
    # 32 wide: of 8 relu features, a first query and key sometimes share none. And next to no
    # eps: the weights of Fourier features may nearly cancel.
    eps = ("model.attention.eps=1e-15",) if choice[0] == "model=linear" else ()
    attention = build(choice + eps, width=32)
    q, k, v = random_qkv(65, d=32)
    ones = torch.ones_like(v)
    torch.testing.assert_close(attention(q, k, ones), ones, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        stepped(attention, q, k, ones, empty(attention)), ones, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("capacity", [0, 64])
def test_selected_rows_go_on_as_they_would_have(attention, capacity):
    """Twice the same row is a fork; the state that was selected from stays as it is."""
    q, k, v = random_qkv(40)
    whole = as_revealed(attention, q, k, v)
    _, state = attention.prefill(
        q[:, :21], k[:, :21], v[:, :21], empty(attention, capacity=capacity)
    )
    rows = torch.tensor([1, 0, 1])
    rest = (x[:, 21:] for x in (q, k, v))
    with torch.no_grad():
        forked = stepped(
            attention, *(x[rows, 21:] for x in (q, k, v)), attention.select(state, rows)
        )
        torch.testing.assert_close(forked, whole[rows, 21:])
        torch.testing.assert_close(stepped(attention, *rest, state), whole[:, 21:])


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("capacity", [0, 64])
def test_step_leaves_the_state_it_was_given_untouched(attention, capacity, gradients):
    """Two continuations of one state, taken in turn, do not disturb each other."""
    q, k, v = random_qkv(40)
    other = [x.flip(0) for x in (q, k, v)]
    with torch.set_grad_enabled(gradients):
        start = empty(attention, capacity=capacity)
        _, shared = attention.prefill(q[:, :10], k[:, :10], v[:, :10], start)
        kept = [x.clone() for x in tensors(shared)]
        left = right = shared
        outputs = []
        for i in range(10, 40):
            out, left = attention.step(q[:, i], k[:, i], v[:, i], left)
            _, right = attention.step(*(x[:, i] for x in other), right)
            outputs.append(out)
    torch.testing.assert_close(tensors(shared), kept, rtol=0, atol=0)
    torch.testing.assert_close(torch.stack(outputs, dim=1), as_revealed(attention, q, k, v)[:, 10:])


def test_a_step_in_place_is_the_step(attention):
    q, k, v = (x.float() for x in random_qkv(5))
    attention = attention.float()  # that of Triton has no float64
    state, expected_state = (attention.init_state(2, dtype=q.dtype) for _ in range(2))
    for i in range(5):
        output, state = attention.step_in_place(q[:, i], k[:, i], v[:, i], state)
        expected, expected_state = attention.step(q[:, i], k[:, i], v[:, i], expected_state)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tensors(state), tensors(expected_state), rtol=1e-4, atol=1e-5)


def test_state_size_is_what_the_class_declares(attention):
    def size(t: int) -> int:
        _, state = attention.prefill(*random_qkv(t))
        return sum(x.numel() for x in tensors(state))

    assert (size(200) == size(1)) == attention.constant_state


def test_linear_attention_is_constant_in_state():
    assert build(("model=linear",)).constant_state


@pytest.mark.parametrize("choice", declaring("exactly_causal"), ids=" ".join)
def test_a_padded_batch_gives_what_each_sequence_gives_alone(choice):
    attention = build(choice)
    long, short = random_qkv(65, b=1), random_qkv(37, b=1)
    padding = torch.full((1, 28, HEADS, WIDTH), 7.0, dtype=torch.float64)
    batch = [
        torch.cat([a, torch.cat([b, padding], dim=1)]) for a, b in zip(long, short, strict=True)
    ]
    outputs = attention(*batch)
    torch.testing.assert_close(outputs[:1], attention(*long))
    torch.testing.assert_close(outputs[1:, :37], attention(*short))


def gradients(loss: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Zeros where an input is not looked at, as keys are where queries are their own."""
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("t", [1, 5])
def test_gradients_agree_with_the_definition(attention, t):
    inputs = [x.requires_grad_() for x in random_qkv(t, b=1)]
    assert torch.autograd.gradcheck(lambda *x: attention(*x), inputs)
    weight = torch.randn(1, t, HEADS, WIDTH, dtype=torch.float64)
    ours = gradients((attention(*inputs) * weight).sum(), inputs)
    exact = gradients((definition(attention, *inputs) * weight).sum(), inputs)
    torch.testing.assert_close(ours, exact)


def test_gradients_flow_through_steps(attention):
    inputs = [x.requires_grad_() for x in random_qkv(7, b=1)]
    weight = torch.randn(1, 7, HEADS, WIDTH, dtype=torch.float64)
    steps = stepped(attention, *inputs, empty(attention, batch=1, capacity=7))
    ours = gradients((steps * weight).sum(), inputs)
    exact = gradients((as_revealed(attention, *inputs) * weight).sum(), inputs)
    torch.testing.assert_close(ours, exact)


def as_rounded(choice: tuple[str, ...], half: CausalAttention) -> CausalAttention:
    """The same attention in float64, with the weights and buffers that rounding left."""
    exact = build(choice, width=half.head_dim, heads=half.num_heads)
    exact.load_state_dict(half.state_dict())
    return exact


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("choice", choices(), ids=" ".join)
def test_half_precision_stays_within_rounding_at_full_length(choice, dtype):
    """Within 2 units in the last place of the largest output, at the length of CIFAR-10."""
    half = build(choice, width=32, heads=1).to(dtype)
    exact = as_rounded(choice, half)
    q, k, v = (x.to(dtype) for x in random_qkv(3072, b=1, h=1, d=32))
    with torch.no_grad():
        expected = exact(*(x.double() for x in (q, k, v)))
        outputs = half(q, k, v)
    assert outputs.dtype == dtype
    error = (outputs.double() - expected).abs().max() / expected.abs().max()
    assert error < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("choice", choices(), ids=" ".join)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stepping_in_half_precision_stays_within_rounding(choice, dtype):
    """The state must not forget: 784 steps from half inputs against the float64 definition."""
    half = build(choice).to(dtype)
    exact = as_rounded(choice, half)
    # Where nothing is summed up, nothing is lost with length.
    q, k, v = (x.to(dtype) for x in random_qkv(784 if half.constant_state else 65, b=1))
    with torch.no_grad():
        state = half.init_state(1, device="cpu", dtype=dtype)
        outputs = stepped(half, q, k, v, state)
        expected = as_revealed(exact, *(x.double() for x in (q, k, v)))
    error = (outputs.double() - expected).abs().max() / expected.abs().max()
    assert error < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("choice", choices(), ids=" ".join)
def test_evaluation_is_deterministic_and_saved(choice):
    attention, again = build(choice), build(choice)
    again.load_state_dict(attention.state_dict())
    inputs = random_qkv(65)
    expected = attention(*inputs)
    torch.testing.assert_close(attention(*inputs), expected, rtol=0, atol=0)
    torch.testing.assert_close(again(*inputs), expected, rtol=0, atol=0)


def test_unequal_numbers_of_queries_and_keys_are_refused(attention, raises_one_line):
    q, k, v = random_qkv(5)
    with raises_one_line("5 queries", "3 keys"):
        attention(q, k[:, :3], v[:, :3])
    with raises_one_line("5 queries", "3 keys"):
        attention.prefill(q, k[:, :3], v[:, :3])


def test_the_scale_multiplies_the_dot_product():
    """For softmax exactly; for elu through phi(sqrt(s) q) . phi(sqrt(s) k)."""
    q, k, v = random_qkv(20)
    softmax = build(("model=softmax", "model.attention.scale=0.7"))
    default = build(("model=softmax",))
    torch.testing.assert_close(softmax(q, k, v), default(q * 0.7 * math.sqrt(WIDTH), k, v))
    linear = build(("model=linear", "model.attention.scale=0.25"))
    plain = build(("model=linear",))
    torch.testing.assert_close(linear(q, k, v), plain(q / 2, k / 2, v))


@pytest.mark.parametrize("model", ["linear", "softmax"])
def test_a_scale_that_is_not_positive_is_refused(model, raises_one_line):
    with raises_one_line("scale=-1.0", "above 0"):
        build((f"model={model}", "model.attention.scale=-1"))
