"""The promises, for every model in conf/model and every feature map it can take."""

from functools import partial

import pytest
import torch

from linear_transformers.attention import (
    CausalAttention,
    DeltaAttention,
    LinearAttention,
    RetentionAttention,
)
from linear_transformers.feature_maps import Elu
from linear_transformers.testing import (
    LENGTHS,
    gradients,
    name_of,
    promises_of,
    random_qkv,
    stepped,
)
from tests.attention.choices import HEADS, WIDTH, build, choices, factory
from tests.attention.definitions import definition


@pytest.fixture(params=choices(), ids=" ".join)
def attention(request) -> CausalAttention:
    return build(request.param)


@pytest.mark.parametrize(
    ("choice", "promise"),
    [
        pytest.param(choice, promise, id=f"{name_of(promise)} {' '.join(choice)}")
        for choice in choices()
        for promise in promises_of(factory(choice))
    ],
)
def test_promises_are_kept(choice, promise):
    if name_of(promise).startswith("constant values") and choice[0] == "model=linear":
        # Weights of Fourier features may nearly cancel.
        choice += ("model.mixer.attention.eps=1e-15",)
    promise(factory(choice))


@pytest.mark.parametrize("t", LENGTHS)
def test_forward_is_the_definition(attention, t):
    q, k, v = random_qkv(t)
    torch.testing.assert_close(attention(q, k, v), definition(attention, q, k, v))


@pytest.mark.parametrize("t", [1, 5])
def test_gradients_agree_with_the_definition(attention, t):
    inputs = [x.requires_grad_() for x in random_qkv(t, b=1)]
    weight = torch.randn(1, t, HEADS, WIDTH, dtype=torch.float64)
    ours = gradients((attention(*inputs) * weight).sum(), inputs)
    exact = gradients((definition(attention, *inputs) * weight).sum(), inputs)
    torch.testing.assert_close(ours, exact)


def test_outputs_have_the_type_of_the_inputs_whatever_the_state_has(attention):
    attention = attention.float()
    inputs = [x.bfloat16() for x in random_qkv(5)]
    outputs, state = attention.prefill(*inputs, attention.init_state(2, dtype=torch.float32))
    output, _ = attention.step(*(x[:, 0] for x in inputs), state)
    assert outputs.dtype == output.dtype == torch.bfloat16


@pytest.mark.parametrize("types", [("float64", "float32"), ("float32", "float64")], ids="-".join)
def test_a_state_goes_on_after_its_model_was_moved_to_another_type(attention, types):
    before, after = (getattr(torch, name) for name in types)
    inputs = [x.to(before) for x in random_qkv(9)]
    expected = attention.to(before)(*inputs)
    _, state = attention.prefill(*(x[:, :5] for x in inputs))
    attention, inputs = attention.to(after), [x.to(after) for x in inputs]
    found, _ = attention.prefill(*(x[:, 5:] for x in inputs), state)
    one, _ = attention.step(*(x[:, 5] for x in inputs), state)
    assert found.dtype == one.dtype == after
    near = {"rtol": 1e-4, "atol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(found, expected[:, 5:], **near)
    torch.testing.assert_close(one, expected[:, 5], **near)


@pytest.mark.parametrize("grad", [True, False])
def test_values_may_be_of_another_type_than_keys(attention, grad):
    q, k, v = (x.float() for x in random_qkv(9))
    attention = attention.float()
    with torch.set_grad_enabled(grad):
        found, expected = attention(q, k, v.bfloat16()), attention(q, k, v.bfloat16().float())
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2, check_dtype=False)


def test_attention_can_be_transformed_by_torch_func(attention):
    q, k, v = random_qkv(5)
    (expected,) = gradients((attention(q.requires_grad_(), k, v) ** 2).sum(), [q])
    found = torch.func.grad(lambda q: (attention(q, k, v) ** 2).sum())(q.detach())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "kind", [partial(LinearAttention, feature_map=Elu), RetentionAttention, DeltaAttention]
)
def test_vectors_of_one_number_may_be_any_view(kind):
    attention = kind(2, 1)
    x = torch.randn(2, 9, 1, 2).transpose(2, 3)
    assert x.stride(-1) != 1
    plain = x.clone(memory_format=torch.contiguous_format)
    torch.testing.assert_close(attention(x, x, x), attention(plain, plain, plain))


def test_linear_attention_is_constant_in_state():
    assert build(("model=linear",)).constant_state


def in_steps(attention, *qkv):
    return stepped(attention, qkv, attention.init_state(2, dtype=torch.float64))


def in_two_parts(attention, *qkv):
    first, state = attention.prefill(*(x[:, :9] for x in qkv))
    second, _ = attention.prefill(*(x[:, 9:] for x in qkv), state)
    return torch.cat([first, second], dim=1)


def from_a_memory(attention, *qkv):
    return attention.bidirectional(*qkv)


@pytest.mark.parametrize("form", [CausalAttention.__call__, in_steps, in_two_parts, from_a_memory])
def test_the_scale_multiplies_the_dot_product(form):
    """For softmax exactly; for elu through phi(sqrt(s) q) . phi(sqrt(s) k)."""
    q, k, v = random_qkv(20)
    softmax = build(("model=softmax", "model.mixer.attention.scale=0.7"))
    default = build(("model=softmax",))
    torch.testing.assert_close(form(softmax, q, k, v), form(default, q * 0.7 * WIDTH**0.5, k, v))
    linear = build(("model=linear", "model.mixer.attention.scale=0.25"))
    plain = build(("model=linear",))
    torch.testing.assert_close(form(linear, q, k, v), form(plain, q / 2, k / 2, v))


@pytest.mark.parametrize("model", ["linear", "softmax", "window"])
def test_a_scale_that_is_not_positive_is_refused(model, raises_one_line):
    with raises_one_line("scale=-1", "above 0"):
        build((f"model={model}", "model.mixer.attention.scale=-1"))
