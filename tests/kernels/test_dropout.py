"""The kernels of dropout against its definition: forward, backward, in every mixture of types."""

import pytest
import torch

from benchmarks.machine import thread_count
from linear_transformers.kernels import compiling, cpp_dropout
from linear_transformers.kernels import dropout as operator
from linear_transformers.kernels.dropout import dropout
from linear_transformers.ops.dropout import dropout as defined
from linear_transformers.ops.dropout import scale, threshold
from tests.kernels.comparing import DEVICE

# With words that are negative where they are signed.
DRAW = torch.tensor([2**32 - 3, 2**31 + 9, 7, 11])
OPTIONS = {"rate": 0.3, "place": 4}
WIDTHS = (1, 3, 7, 8, 9, 24, 63, 64, 65, 127, 128, 129, 200, 1024)
PAIRS = [
    (torch.float32, torch.float32), (torch.float64, torch.float64),
    (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16), (torch.float16, torch.float32),
]  # fmt: skip
needs_compiler = pytest.mark.skipif(
    cpp_dropout.unavailable(torch.zeros(1), torch.zeros(1)) is not None, reason="needs a compiler"
)


def numbers(*shape: int, dtype=torch.float64) -> torch.Tensor:
    torch.manual_seed(shape[-1])
    return torch.randn(shape, dtype=torch.float64).to(dtype).to(DEVICE).requires_grad_()


def results(function, x, residual=None, *, relu=False):
    """The result, and its gradients by x and the residual in a random direction."""
    options = {**OPTIONS, "residual": residual}
    if relu and function is defined:
        x_or_less = x.relu()
        out = defined(x_or_less, DRAW, **options)
    else:
        out = function(x, DRAW, **options, **({"relu": True} if relu else {}))
    torch.manual_seed(1)
    weights = torch.randn(out.shape, dtype=torch.float64).to(out)
    given = [x] if residual is None else [x, residual]
    return [out, *torch.autograd.grad((out * weights).sum(), given)]


def check(function, kind: str, width: int, dtypes=(torch.float64, torch.float64)) -> None:
    x, residual = (numbers(3, 5, width, dtype=dtype) for dtype in dtypes)
    given = (x, residual) if kind == "residual" else (x,)
    exact = [t.detach().double().requires_grad_() for t in given]
    found = results(function, *given, relu=kind == "relu")
    expected = results(defined, *exact, relu=kind == "relu")
    assert [t.dtype for t in found[1:]] == [t.dtype for t in given]
    coarsest = max(torch.finfo(t.dtype).eps for t in found)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2 * coarsest, atol=2 * coarsest)
        assert torch.equal(ours == 0, theirs.to(ours.dtype) == 0)  # the same are dropped


@pytest.mark.parametrize("kind", ["plain", "relu", "residual"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_what_is_defined(kind, width):
    check(dropout, kind, width)


@pytest.mark.parametrize("kind", ["plain", "relu", "residual"])
@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
def test_types_may_be_mixed(kind, dtypes):
    check(dropout, kind, 200, dtypes)


@pytest.mark.parametrize("kind", ["plain", "relu", "residual"])
def test_without_a_compiler_masks_are_the_same(monkeypatch, kind):
    monkeypatch.setattr(compiling, "compiled", lambda source: "there is no compiler")
    assert cpp_dropout.unavailable(torch.zeros(1), torch.zeros(1)) == "there is no compiler"
    check(dropout, kind, 65)


@pytest.mark.parametrize("kind", ["plain", "relu", "residual"])
@pytest.mark.parametrize("width", [1, 65, 200, 1100])
def test_triton_computes_the_same(monkeypatch, kind, width):
    """In Triton's interpreter where there is no GPU."""
    triton = pytest.importorskip("linear_transformers.kernels.triton_dropout")
    monkeypatch.setattr(operator.cpp_dropout, "cpp_dropout", triton.triton_dropout)
    monkeypatch.setattr(operator.cpp_dropout, "unavailable", lambda x, out: None)
    for dtypes in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        check(dropout, kind, width, dtypes)


@needs_compiler
def test_any_number_of_threads_drops_the_same():
    x, found = numbers(64, 65, 129, dtype=torch.float32).detach(), []
    for threads in (1, 2, 3):
        with thread_count(threads):
            found.append(dropout(x, DRAW, **OPTIONS))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_a_view_that_is_not_contiguous_is_taken_as_it_is():
    x = numbers(5, 3, 64).transpose(0, 1)
    expected = defined(x, DRAW, **OPTIONS)
    torch.testing.assert_close(dropout(x, DRAW, **OPTIONS), expected)


def test_no_rows_give_none():
    assert dropout(torch.zeros(0, 5, 8), DRAW, **OPTIONS).shape == (0, 5, 8)


def test_a_nan_is_not_dropped_by_relu_nor_by_rounding():
    nan = torch.full((1, 4, 64), float("nan"))
    for x in (nan, nan.bfloat16()):
        out = dropout(x, DRAW, rate=0.3, place=0, relu=True)
        assert torch.equal(out.isnan(), ~(out == 0))
        assert out.isnan().any()


@pytest.mark.parametrize("kernel", ["cpp", "triton", "torch"])
def test_the_gradient_of_relu_at_nan_is_that_of_torch(monkeypatch, kernel):
    """It is passed on."""
    if kernel == "triton":
        triton = pytest.importorskip("linear_transformers.kernels.triton_dropout")
        monkeypatch.setattr(operator.cpp_dropout, "cpp_dropout", triton.triton_dropout)
        monkeypatch.setattr(operator.cpp_dropout, "unavailable", lambda x, out: None)
    elif kernel == "torch":
        monkeypatch.setattr(compiling, "compiled", lambda source: "there is no compiler")
    x = torch.tensor([-1.0, 0.0, float("nan"), 2.0]).expand(2, 4, 4).clone().requires_grad_()
    dropout(x, DRAW, rate=0.0, place=0, relu=True).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.tensor([0.0, 0.0, 1.0, 1.0]).expand_as(x))


def test_the_gradient_is_that_of_differences():
    x, residual = numbers(2, 3, 10), numbers(2, 3, 10)
    for options in ({"residual": residual}, {"relu": True}):
        torch.autograd.gradcheck(lambda x, o=options: dropout(x, DRAW, **OPTIONS, **o), x)


def test_no_rate_drops_everything():
    assert threshold(1 - 1e-9) == 65535
    assert scale(1 - 1e-9) == 65536
