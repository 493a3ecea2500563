"""The promises, for every model in conf/model and every feature map it can take."""

import pytest
import torch

from linear_transformers.attention import CausalAttention
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
