"""Triton's kernels against parallel: on a GPU where there is one, else in Triton's interpreter."""

import subprocess
import sys

import pytest
import torch

from linear_transformers import ops
from linear_transformers.feature_maps import Elu
from tests.conftest import random_qkv

pytest.importorskip("triton", reason="Triton is not for this system")

from linear_transformers.ops.triton_linear import CHUNK, triton_linear

EPS = 1e-6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(t: int, c: int, m: int, *, b: int = 2, h: int = 2, dtype=torch.float32, device=DEVICE):
    """Queries, keys, values and a state, in float64 what they are in `dtype`."""
    torch.manual_seed(t + c)
    tensors = [torch.randn(b, t, h, width).to(dtype) for width in (c, c, m)]
    tensors += [torch.rand(b, h, c, m), torch.rand(b, h, c)]
    return [x.to(device).requires_grad_() for x in tensors]


def results(algorithm, given, *, phi=None, **options):
    """Outputs, the state after them, and the gradients of a random weighing of all of these."""
    q, k, v, *state = given
    if phi is not None:
        q, k = phi(q), phi(k)
    outputs, end = algorithm(q, k, v, eps=EPS, state=ops.LinearState(*state), **options)
    found = (outputs, *end)
    generator = torch.Generator().manual_seed(0)
    weighed = [
        (x.double() * torch.randn(x.shape, generator=generator).to(x.device)).sum() for x in found
    ]
    return *found, *torch.autograd.grad(sum(weighed), given)


def errors(found, expected) -> list[float]:
    return [
        ((x.double() - y).norm() / y.norm()).item() for x, y in zip(found, expected, strict=True)
    ]


def exactly(given):
    return [x.detach().double().requires_grad_() for x in given]


@pytest.mark.parametrize("elu", [True, False])
@pytest.mark.parametrize(
    ("t", "c", "m"),
    [(1, 16, 16), (CHUNK, 5, 17), (CHUNK + 1, 32, 32), (3 * CHUNK - 1, 16, 8), (70, 70, 130)],
)
def test_it_reproduces_parallel(t, c, m, elu):
    """At odd lengths and widths, from a state, with all gradients."""
    given = inputs(t, c, m)
    phi = Elu(c)
    found = results(triton_linear, given, elu=elu, phi=None if elu else phi)
    expected = results(ops.parallel, exactly(given), phi=phi)
    assert max(errors(found, expected)) < 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    given = inputs(2 * CHUNK + 3, 32, 32, dtype=dtype)
    found = results(triton_linear, given, elu=True)
    expected = results(ops.parallel, exactly(given), phi=Elu(32))
    assert [x.dtype for x in found[:3]] == [dtype, torch.float32, torch.float32]
    assert max(errors(found, expected)) < 2 * torch.finfo(dtype).eps


def test_queries_keys_and_values_may_lie_in_one_tensor():
    packed = torch.randn(2, 21, 3, 2, 16, device=DEVICE)
    views = packed.unbind(2)
    assert not views[0].is_contiguous()
    found, end = triton_linear(*views, eps=EPS, elu=True)
    expected, exact_end = triton_linear(*(x.contiguous() for x in views), eps=EPS, elu=True)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(end, exact_end)
    turned = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in views]  # gaps in a row
    torch.testing.assert_close(triton_linear(*turned, eps=EPS, elu=True)[0], expected)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's numpy
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(bad):
    q, k, v = (x.float().to(DEVICE) for x in random_qkv(5))
    k[:, 2] = bad
    outputs, _ = triton_linear(q, k, v, eps=EPS, elu=True)
    assert outputs[:, :2].isfinite().all()
    assert not outputs[:, 2:].isfinite().any()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck looks at it
def test_it_is_an_operator_to_torch():
    torch.library.opcheck(
        torch.ops.linear_transformers.triton_causal.default, (*inputs(9, 16, 16), EPS, True)
    )


def test_a_compiled_function_does_not_break_at_it():
    given = inputs(9, 16, 16)

    def loss(*given):
        outputs, _, kv_sum, _ = torch.ops.linear_transformers.triton_causal(*given, EPS, True)
        return outputs.square().sum() + kv_sum.sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(run(*given), given) for run in (compiled, loss))
    torch.testing.assert_close(found, expected)


def test_float64_is_refused_and_auto_goes_elsewhere(raises_one_line):
    q, k, v = (x.to(DEVICE) for x in random_qkv(5))
    with raises_one_line("kernel=triton", "float64", "kernel=auto"):
        triton_linear(q, k, v, eps=EPS)
    assert ops.chosen("auto", torch.device("cuda"), torch.float64) == "chunkwise"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("b", "t", "c"), [(4, 3072, 32), (1, 2**14 + 1, 64), (1, 1000, 256)])
def test_it_reproduces_parallel_at_full_size(b, t, c, dtype):
    given = inputs(t, c, c, b=b, h=4, dtype=dtype)
    found = results(triton_linear, given, elu=True)
    # Exact, and linear in memory: in float64 on the processor.
    exact = [x.detach().double().cpu().requires_grad_() for x in given]
    expected = [x.to(DEVICE) for x in results(ops.chunkwise, exact, phi=Elu(c))]
    tolerance = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert max(errors(found, expected)) < tolerance


@pytest.mark.gpu
def test_attention_that_inductor_compiles_is_what_it_was(tmp_path):
    """In a process of its own: compilation does not see through the tests' checks of shapes."""
    program = """
import torch
from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
attention = LinearAttention(4, 32, feature_map=Elu, kernel="triton").cuda()
q, k, v = torch.randn(3, 2, 300, 4, 32, device="cuda").unbind()
compiled = torch.compile(attention, fullgraph=True)
torch.testing.assert_close(compiled(q, k, v), attention(q, k, v), rtol=1e-4, atol=1e-4)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
