"""The short convolution's kernel against its definition, and the definition against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.machine import thread_count
from linear_transformers.kernels import convolution
from linear_transformers.ops.convolution import convolved as defined

needs_compiler = pytest.mark.skipif(
    convolution.unavailable(torch.zeros(1), 1) is not None, reason="needs a compiler"
)
SHAPES = [(1, 1, 1), (2, 3, 5), (3, 17, 63), (2, 65, 64), (1, 130, 65), (2, 9, 200)]
TAPS = (1, 2, 4, 8, 9)  # the kernel has no more than eight


def given(shape, taps, dtype=torch.float64):
    torch.manual_seed(shape[-1])
    x, weight = torch.randn(shape, dtype=torch.float64), torch.randn(taps, shape[-1]).double()
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()


def results(function, x, weight, ahead):
    y = function(x, weight, ahead=ahead)
    torch.manual_seed(0)
    direction = torch.randn(y.shape, dtype=torch.float64).to(y)
    return y, *torch.autograd.grad((y * direction).sum(), (x, weight))


@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_definition_is_torchs_convolution(shape, taps):
    x, weight = given(shape, taps)
    for ahead in {0, taps // 2, taps - 1}:
        padded = F.pad(x.mT, (taps - 1 - ahead, ahead))
        expected = F.conv1d(padded, weight.T.unsqueeze(1), groups=shape[-1]).mT
        torch.testing.assert_close(defined(x, weight, ahead=ahead), expected)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_compiler), False])
@pytest.mark.parametrize("taps", TAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_operator_is_what_is_defined(shape, taps, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(convolution, "unavailable", lambda *any: "none is wanted")
    x, weight = given(shape, taps)
    for ahead in {0, taps // 2, taps - 1}:
        torch.testing.assert_close(
            results(convolution.convolved, x, weight, ahead), results(defined, x, weight, ahead)
        )


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_rounded_once(dtype):
    x, weight = given((2, 65, 96), 4, dtype)
    exact = (part.detach().double().requires_grad_() for part in (x, weight))
    found = results(convolution.convolved, x, weight, 0)
    assert [part.dtype for part in found] == [dtype] * 3
    for ours, expected in zip(found[:2], results(defined, *exact, 0)[:2], strict=True):
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(ours.double(), expected, rtol=rounding, atol=4 * rounding)


@needs_compiler
def test_rows_may_lie_anywhere():
    """A projection has gates beside what is convolved."""
    x, weight = given((2, 19, 24), 4)
    beside = torch.cat([x, torch.full_like(x, torch.nan)], dim=-1)[..., :24]
    assert not beside.is_contiguous()
    torch.testing.assert_close(
        convolution.convolved(beside, weight), convolution.convolved(x, weight)
    )
    across = x.mT.contiguous().mT
    torch.testing.assert_close(
        convolution.convolved(across, weight), convolution.convolved(x, weight)
    )


@needs_compiler
def test_any_number_of_threads_gives_the_same_bits():
    x, weight = given((4, 130, 256), 4, torch.float32)
    found = []
    for threads in (1, 2, 3):
        with thread_count(threads):
            found.append(results(convolution.convolved, x, weight, 0))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


@pytest.mark.parametrize("ahead", [0, 2])
def test_gradients_are_those_of_differences(ahead):
    x, weight = given((2, 5, 3), 4)
    assert torch.autograd.gradcheck(
        lambda x, w: convolution.convolved(x, w, ahead=ahead), (x, weight)
    )


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck looks at it
def test_it_is_an_operator_to_torch():
    x, weight = given((2, 9, 5), 4)
    torch.library.opcheck(convolution._forward_op, (x, weight, 0))
