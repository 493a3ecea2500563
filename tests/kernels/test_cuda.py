"""The CUDA kernel against parallel, its threads taking turns on a CPU; and what nvcc says of it."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from linear_transformers.feature_maps import Elu
from linear_transformers.kernels import cuda_linear as module
from linear_transformers.kernels.compiling import FOLDER, compiled
from linear_transformers.ops.parallel import parallel
from tests.kernels.comparing import EPS, check_parts, errors, exactly, inputs, results


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> ctypes.CDLL:
    """The kernel's own source, compiled for a CPU by cuda_on_cpu.h."""
    if shutil.which("c++") is None:
        pytest.skip("the kernel is compiled for the CPU here, and there is no compiler")
    target = tmp_path_factory.mktemp("cuda") / "cuda_linear.so"
    stands_in = Path(__file__).parent / "cuda_on_cpu.h"
    headers = Path(torch.__file__).parent / "include"
    command = ["c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-x", "c++", "-include", stands_in]
    command += [f"-I{headers}", FOLDER / module.SOURCE, "-o", target]
    subprocess.run([str(word) for word in command], check=True)
    return ctypes.CDLL(str(target))


@pytest.fixture
def cuda(emulated, monkeypatch):
    monkeypatch.setattr(module, "compiled", lambda source: emulated)
    monkeypatch.setattr(module, "unavailable", lambda device, dtype: None)
    monkeypatch.setattr(module, "_stream", lambda device: 0)
    return module.cuda_linear


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("t", "c", "m"), [(1, 16, 16), (32, 5, 17), (33, 32, 32), (65, 40, 8), (17, 100, 130)]
)
def test_it_reproduces_parallel(cuda, t, c, m, fused):
    """At odd lengths and widths, from a state, with all gradients."""
    given = inputs(t, c, m, device="cpu")
    phi = Elu(c)
    found = results(cuda, given, phi=phi if fused else phi.forward)
    expected = results(parallel, exactly(given), phi=phi)
    assert max(errors(found, expected)) < 2e-6


def test_the_start_of_sequences_and_some_gradients_alone(cuda):
    check_parts(cuda, 35, 20, 17, device="cpu")


def test_the_widest_head_and_half_a_vector(cuda):
    for c, m in ((256, 3), (2, 256)):
        given = inputs(19, c, m, b=1, device="cpu")
        found = results(cuda, given, phi=Elu(c))
        assert max(errors(found, results(parallel, exactly(given), phi=Elu(c)))) < 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(cuda, dtype):
    given = inputs(67, 32, 32, dtype=dtype, device="cpu")
    expected = results(parallel, exactly(given), phi=Elu(32))
    for phi in (Elu(32), Elu(32).forward):  # not fused, features are float32 beside the values
        found = results(cuda, given, phi=phi)
        assert [x.dtype for x in found[:3]] == [dtype, torch.float32, torch.float32]
        assert max(errors(found, expected)) < 2 * torch.finfo(dtype).eps


def test_queries_keys_and_values_may_lie_in_one_tensor(cuda):
    views = torch.randn(2, 21, 3, 2, 16).unbind(2)
    expected = cuda(*(x.contiguous() for x in views), eps=EPS, phi=Elu(16))
    torch.testing.assert_close(cuda(*views, eps=EPS, phi=Elu(16)), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(cuda, bad):
    q, k, v, *_ = inputs(5, 8, 8, device="cpu")
    k.data[:, 2] = bad
    outputs, _ = cuda(q, k, v, eps=EPS, phi=Elu(8))
    assert outputs[:, :2].isfinite().all()
    assert not outputs[:, 2:].isfinite().any()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck looks at it
def test_it_is_an_operator_to_torch(cuda):
    torch.library.opcheck(
        torch.ops.linear_transformers.cuda_causal.default,
        (*inputs(9, 16, 16, device="cpu"), EPS, True),
    )


def test_what_cannot_run_is_refused(raises_one_line):
    q, k, v, *_ = inputs(5, 16, 16, device="cpu")
    with raises_one_line("kernel=cuda", "cpu", "kernel=auto"):
        module.cuda_linear(q, k, v, eps=EPS)
    with raises_one_line("kernel=cuda", "256", "300", "kernel=auto"):
        module.cuda_linear(*inputs(5, 300, 16, device="cpu")[:3], eps=EPS)
    assert module.unavailable(torch.device("cuda"), torch.float64) == "it has no float64"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA toolkit's nvcc")
def test_nvcc_compiles_it(monkeypatch, tmp_path):
    """For a GPU that need not be here: every function is there, and nothing else is left behind."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    library = compiled.__wrapped__(module.SOURCE)
    assert not isinstance(library, str), library
    for dtype in module.NAMES.values():
        assert getattr(library, f"forward_{dtype}")
        assert getattr(library, f"backward_{dtype}")
    assert [path.suffix for path in (tmp_path / "linear_transformers").iterdir()] == [".so"]
