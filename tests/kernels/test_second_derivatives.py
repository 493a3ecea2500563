"""What a kernel computes can be differentiated twice, as its definition can."""

from functools import partial

import pytest
import torch

from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.kernels.convolution import convolved
from linear_transformers.kernels.dropout import dropout
from linear_transformers.mixers import DeltaNet, GatedLinearAttention, MultiHeadAttention
from linear_transformers.ops.recurrent import LinearState

gradgradcheck = partial(torch.autograd.gradgradcheck, fast_mode=True)
LINEAR = partial(MultiHeadAttention, attention=partial(LinearAttention, feature_map=Elu))


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("kernel", ["cpp", "chunkwise"])
def test_of_linear_attention_and_its_state(kernel):
    attention = LinearAttention(2, 3, feature_map=Elu, kernel=kernel)

    def run(q, k, v, kv_sum, k_sum):
        outputs, state = attention.prefill(q, k, v, LinearState(kv_sum, k_sum.exp()))
        return outputs, *state

    assert gradgradcheck(run, leaves(*[(2, 5, 2, 3)] * 3, (2, 2, 3, 3), (2, 2, 3)))


@pytest.mark.parametrize(
    "mixer", [LINEAR, partial(LINEAR, short_convolution=4), DeltaNet, GatedLinearAttention]
)
def test_of_layers(mixer):
    layer = mixer(4, 2).double()
    inputs = leaves((2, 5, 4))
    assert gradgradcheck(layer, inputs)
    (gradient,) = torch.autograd.grad(layer(*inputs).square().sum(), inputs, create_graph=True)
    gradient.square().sum().backward()  # a penalty that weights are trained by
    assert all(weight.grad is not None for weight in layer.parameters())


@pytest.mark.parametrize("ahead", [0, 1])
def test_of_the_convolution(ahead):
    assert gradgradcheck(partial(convolved, ahead=ahead), leaves((2, 5, 3), (4, 3)))


@pytest.mark.parametrize("more", [{}, {"relu": True}, {"residual": torch.ones(2, 5, 3).double()}])
def test_of_dropout(more):
    draw = torch.tensor([1, 2, 0, 0])

    def run(x):
        return dropout(x.square(), draw, rate=0.3, place=0, **more)

    assert gradgradcheck(run, leaves((2, 5, 3)))


def test_hessians_are_those_of_the_definition():
    q, k, v = (torch.randn(1, 5, 2, 3, dtype=torch.float64) for _ in range(3))

    def hessian(kernel: str):
        attention = LinearAttention(2, 3, feature_map=Elu, kernel=kernel)
        function = torch.autograd.functional.hessian
        return function(lambda x: attention(x, k, v).square().sum(), q)

    torch.testing.assert_close(hessian("cpp"), hessian("parallel"))
