"""What a kernel computes is differentiated as its definition is: twice, forward, by torch.func."""

from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from linear_transformers.attention import DeltaAttention, LinearAttention, SoftmaxAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.kernels.convolution import convolved
from linear_transformers.kernels.dropout import dropout
from linear_transformers.mixers import DeltaNet, GatedLinearAttention
from linear_transformers.ops.recurrent import LinearState
from tests.conftest import attending

# torch 2.14 itself calls what it has deprecated, at the first forward derivative.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")

gradgradcheck = partial(torch.autograd.gradgradcheck, fast_mode=True)
LINEAR = attending(LinearAttention, feature_map=Elu)
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


def test_of_softmax_by_pytorchs_own_definition():
    """Its kernel for CPUs has no second derivatives, which docs/library.md says."""
    attention, inputs = SoftmaxAttention(2, 3), leaves(*[(2, 5, 2, 3)] * 3)
    with pytest.raises(RuntimeError, match="attention_for_cpu_backward is not implemented"):
        gradgradcheck(attention, inputs)
    with sdpa_kernel(SDPBackend.MATH):
        assert gradgradcheck(attention, inputs)


@pytest.mark.parametrize("ahead", [0, 1])
def test_of_the_convolution(ahead):
    assert gradgradcheck(partial(convolved, ahead=ahead), leaves((2, 5, 3), (4, 3)))


@pytest.mark.parametrize("more", DROPOUT)
def test_of_dropout(more):
    draw = torch.tensor([1, 2, 0, 0])

    def run(x):
        return dropout(x.square(), draw, rate=0.3, place=0, **more)

    assert gradgradcheck(run, leaves((2, 5, 3)))


def check_forward(function, x: torch.Tensor, direction: torch.Tensor) -> None:
    """Compare the derivative in a direction, by torch.func and of dual numbers, with the backward
    pass, twice."""
    _, expected = torch.autograd.functional.jvp(function, x, direction)
    torch.testing.assert_close(jvp(function, (x,), (direction,))[1], expected)
    with forward_ad.dual_level():
        dual = function(forward_ad.make_dual(x, direction))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected)


@pytest.mark.parametrize("mixer", LAYERS)
def test_forward_derivatives_of_layers(mixer):
    check_forward(mixer(4, 2).double(), *torch.randn(2, 2, 5, 4, dtype=torch.float64))


@pytest.mark.parametrize("more", DROPOUT)
def test_forward_derivatives_of_dropout(more):
    run = partial(dropout, draw=torch.tensor([1, 2, 0, 0]), rate=0.3, place=0, **more)
    check_forward(run, *torch.randn(2, 2, 5, 3, dtype=torch.float64))


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
    torch.testing.assert_close(torch.func.hessian(loss)(sequences[0]), twice)


def test_hessians_are_those_of_the_definition():
    q, k, v = (torch.randn(1, 5, 2, 3, dtype=torch.float64) for _ in range(3))

    def hessian(kernel: str):
        attention = LinearAttention(2, 3, feature_map=Elu, kernel=kernel)
        function = torch.autograd.functional.hessian
        return function(lambda x: attention(x, k, v).square().sum(), q)

    torch.testing.assert_close(hessian("cpp"), hessian("parallel"))


@pytest.mark.parametrize("mechanism", [LinearAttention, DeltaAttention])
def test_gradients_that_have_gradients_are_of_each_input_alone(mechanism):
    """Though one is given twice, and another is computed from it."""
    options = {"feature_map": Elu} if mechanism is LinearAttention else {}
    attention = mechanism(2, 4, **options)
    x = torch.randn(2, 6, 2, 4, dtype=torch.float64, requires_grad=True)
    loss = attention(x, x @ torch.randn(4, 4, dtype=torch.float64), x).square().sum()
    (once,) = torch.autograd.grad(loss, x, retain_graph=True)
    (again,) = torch.autograd.grad(loss, x, create_graph=True)
    torch.testing.assert_close(again, once)
