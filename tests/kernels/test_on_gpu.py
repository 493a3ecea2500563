"""The kernel for GPUs, at full size, where there is a GPU."""

import subprocess
import sys

import pytest
import torch

from linear_transformers.feature_maps import Elu
from linear_transformers.ops.chunkwise import chunkwise
from linear_transformers.ops.parallel import parallel
from tests.kernels.comparing import DEVICE, errors, inputs, results

pytest.importorskip("triton", reason="Triton is not for this system")
from linear_transformers.kernels.triton_linear import triton_linear

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("b", "t", "c"), [(4, 3072, 32), (1, 2**14 + 1, 64), (1, 1000, 256)])
def test_it_reproduces_parallel_at_full_size(b, t, c, dtype):
    given = inputs(t, c, c, b=b, h=4, dtype=dtype)
    found = results(triton_linear, given, phi=Elu(c))
    # Exact, and linear in memory: in float64 on the processor.
    exact = [x.detach().double().cpu().requires_grad_() for x in given]
    expected = [x.to(DEVICE) for x in results(chunkwise, exact, phi=Elu(c))]
    tolerance = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert max(errors(found, expected)) < tolerance


@pytest.mark.parametrize("c", [16, 100, 256])
def test_odd_lengths_and_widths(c):
    given = inputs(131, c, 40)
    exact = [x.detach().double().requires_grad_() for x in given]
    expected = results(parallel, exact, phi=Elu(c))
    assert max(errors(results(triton_linear, given, phi=Elu(c)), expected)) < 1e-5


def test_the_same_input_gives_the_same_bits():
    given = inputs(777, 32, 32, dtype=torch.bfloat16)
    first, second = (results(triton_linear, given, phi=Elu(32)) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


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
