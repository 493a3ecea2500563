"""What a kernel computes is differentiated as its definition is: twice, forward, by torch.func."""

from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap

from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.kernels.convolution import convolved
from linear_transformers.kernels.dropout import dropout
from linear_transformers.mixers import DeltaNet, GatedLinearAttention, MultiHeadAttention
from linear_transformers.ops.recurrent import LinearState

# torch 2.14 itself calls what it has deprecated, at the first forward derivative.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")

gradgradcheck = partial(torch.autograd.gradgradcheck, fast_mode=True)
LINEAR = partial(MultiHeadAttention, attention=partial(LinearAttention, feature_map=Elu))
LAYERS = [LINEAR, partial(LINEAR, short_convolution=4), DeltaNet, GatedLinearAttention]
DROPOUT = [{}, {"relu": True}, {"residual": torch.ones(2, 5, 3).double()}]


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("kernel", ["cpp", "chunkwise"])
def test_of_linear_attention_and_its_state(kernel):
    attention = LinearAttention(2, 3, feature_map=Elu, kernel=kernel)

    def run(q, k, v, kv_sum, k_sum):
        outputs, state = attention.prefill(q, k, v, LinearState(kv_sum, k_sum.exp()))
        return outputs, *state

    assert gradgradcheck(run, leaves(*[(2, 5, 2, 3)] * 3, (2, 2, 3, 3), (2, 2, 3)))


@pytest.mark.parametrize("mixer", LAYERS)
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


@pytest.mark.parametrize("more", DROPOUT)
def test_of_dropout(more):
    draw = torch.tensor([1, 2, 0, 0])

    def run(x):
        return dropout(x.square(), draw, rate=0.3, place=0, **more)

    assert gradgradcheck(run, leaves((2, 5, 3)))


def forward(function, x: torch.Tensor, direction: torch.Tensor) -> list[torch.Tensor]:
    """The derivative in a direction: as torch.func has it, of dual numbers, and backward twice."""
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(function(forward_ad.make_dual(x, direction))).tangent
    assert dual is not None
    backward_twice = torch.autograd.functional.jvp(function, x, direction)
    return [jvp(function, (x,), (direction,))[1], dual, backward_twice[1]]


@pytest.mark.parametrize("mixer", LAYERS)
def test_forward_derivatives_of_layers(mixer):
    x, direction = torch.randn(2, 2, 5, 4, dtype=torch.float64)
    of_func, of_dual, expected = forward(mixer(4, 2).double(), x, direction)
    torch.testing.assert_close(of_func, expected)
    torch.testing.assert_close(of_dual, expected)


@pytest.mark.parametrize("more", DROPOUT)
def test_forward_derivatives_of_dropout(more):
    draw = torch.tensor([1, 2, 0, 0])
    x, direction = torch.randn(2, 2, 5, 3, dtype=torch.float64)
    run = partial(dropout, draw=draw, rate=0.3, place=0, **more)
    of_func, of_dual, expected = forward(run, x, direction)
    torch.testing.assert_close(of_func, expected)
    torch.testing.assert_close(of_dual, expected)


@pytest.mark.parametrize("mixer", LAYERS)
def test_gradients_of_each_sequence(mixer):
    """And the second derivatives of one, forward over backward."""
    layer, sequences = mixer(4, 2).double(), torch.randn(3, 5, 4, dtype=torch.float64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layer(x[None]).square().sum()

    alone = [x.requires_grad_() for x in sequences.clone()]
    expected = [torch.autograd.grad(loss(x), x)[0] for x in alone]
    torch.testing.assert_close(vmap(grad(loss))(sequences), torch.stack(expected))
    twice = torch.autograd.functional.hessian(loss, sequences[0])
    torch.testing.assert_close(hessian(loss)(sequences[0]), twice)


def test_hessians_are_those_of_the_definition():
    q, k, v = (torch.randn(1, 5, 2, 3, dtype=torch.float64) for _ in range(3))

    def hessian(kernel: str):
        attention = LinearAttention(2, 3, feature_map=Elu, kernel=kernel)
        function = torch.autograd.functional.hessian
        return function(lambda x: attention(x, k, v).square().sum(), q)

    torch.testing.assert_close(hessian("cpp"), hessian("parallel"))
