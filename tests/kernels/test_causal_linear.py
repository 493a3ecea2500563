"""cpp, and what every fast kernel promises, against parallel, the definition."""

import shutil
from functools import partial

import pytest
import torch
from torch import Tensor

from linear_transformers.attention import DeltaAttention, LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.kernels.compiling import compiled
from linear_transformers.kernels.cpp_linear import cpp_linear
from linear_transformers.ops.chunkwise import chunkwise
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.recurrent import LinearState, empty_state, step
from linear_transformers.testing import random_qkv
from tests.kernels.comparing import check_parts

EPS = 1e-6
LENGTHS = [1, 2, 63, 64, 65, 130]
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
CPP = pytest.param(cpp_linear, id="cpp", marks=NEEDS_COMPILER)
# Every algorithm that is fast; chunks that divide no length.
FAST = [pytest.param(partial(chunkwise, chunk_size=12), id="chunkwise"), CPP]


def features(t: int, **options) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = random_qkv(t, **options)
    phi = Elu(q.shape[-1])
    return phi(q), phi(k), v


@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize(("c", "m"), [(1, 1), (8, 8), (16, 33), (40, 7), (64, 64), (256, 17)])
@pytest.mark.parametrize("algorithm", [CPP])
def test_cpp_reproduces_parallel(algorithm, t, c, m):
    """At every width, from a state, with all gradients."""
    q, k, _ = features(t, b=2, h=2, d=c)
    v = torch.randn(2, t, 2, m, dtype=q.dtype)
    state = (torch.rand(2, 2, c, m, dtype=q.dtype), torch.rand(2, 2, c, dtype=q.dtype))
    inputs = [x.requires_grad_() for x in (q, k, v, *state)]
    weights = [torch.randn_like(x) for x in (v, *state)]

    def run(algorithm):
        outputs, end = algorithm(*inputs[:3], eps=EPS, state=LinearState(*inputs[3:]))
        results = (outputs, *end)
        weighted = sum((x * w).sum() for x, w in zip(results, weights, strict=True))
        return results, torch.autograd.grad(weighted, inputs)

    torch.testing.assert_close(run(algorithm), run(parallel))


@NEEDS_COMPILER
def test_the_start_of_sequences_and_some_gradients_alone():
    check_parts(cpp_linear, 35, 20, 17, device="cpu")


@pytest.mark.parametrize("algorithm", [CPP])
def test_the_fused_map_is_elu(algorithm):
    x = torch.cat([torch.linspace(-100, 3, 4001), torch.tensor([0.0, -0.0, -1e-30, -300, 1e4])])
    q = x.reshape(1, -1, 1, 1).expand(-1, -1, 1, 2).contiguous()
    ones = torch.ones(1, len(x), 1, 1)
    inputs = [y.requires_grad_() for y in (torch.ones_like(q), q, ones)]
    _, end = algorithm(*inputs, eps=EPS, phi=Elu(2))
    (gradient,) = torch.autograd.grad(end.k_sum.sum(), inputs[1])
    exact = x.double().requires_grad_()
    mapped = Elu(1)(exact)
    (wanted,) = torch.autograd.grad(mapped.sum(), exact)
    torch.testing.assert_close(gradient[0, :, 0, 0].double(), wanted, rtol=3e-7, atol=1e-37)
    q, k, v = (y.float() for y in random_qkv(65))
    for phi in (Elu(8), Elu(8).forward):  # fused, and applied before
        found, end = algorithm(q, k, v, eps=EPS, phi=phi)
        expected, expected_end = parallel(q, k, v, eps=EPS, phi=phi)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(end, expected_end)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck looks at it
@pytest.mark.parametrize("algorithm", [CPP])
def test_cpp_is_an_operator_to_torch(algorithm):
    q, k, v = (x.float().requires_grad_() for x in features(9))
    state = empty_state(2, 3, 8, 8, device="cpu", dtype=q.dtype)
    torch.library.opcheck(
        torch.ops.linear_transformers.cpp_causal.default, (q, k, v, *state, EPS, True)
    )


@pytest.mark.parametrize("algorithm", [CPP])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["q", "k", "v", "kv_sum", "k_sum"])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_one_tensor_of_another_type_is_converted(algorithm, name, fused, dtypes):
    most, other = dtypes
    exact = dict(zip("qkv", random_qkv(33), strict=True))
    exact["kv_sum"], exact["k_sum"] = torch.rand(2, 3, 8, 8).double(), torch.rand(2, 3, 8).double()
    given = {key: x.to(other if key == name else most) for key, x in exact.items()}

    def run(algorithm, q, k, v, *state):
        phi = Elu(8) if fused else Elu(8).forward
        return algorithm(q, k, v, eps=EPS, phi=phi, state=LinearState(*state))

    outputs, end = run(algorithm, *given.values())
    assert {x.dtype for x in (outputs, *end)} == {given["v"].dtype}
    expected, expected_end = run(parallel, *exact.values())
    close = {"check_dtype": False, "rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close((outputs, *end), (expected, *expected_end), **close)


@pytest.mark.parametrize("algorithm", [CPP])
@pytest.mark.parametrize(("sums", "size"), [(0, 1), (1, 2)])  # of too few sequences, or too narrow
def test_a_state_that_does_not_fit_is_refused(algorithm, sums, size, raises_one_line):
    q, k, v = features(5)
    state = [torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8)]
    state[sums] = state[sums].narrow(-3 if sums == 0 else -1, 0, 1)
    with raises_one_line("[2, 3, 8, 8]", str(list(state[sums].shape))):
        algorithm(q, k, v, eps=EPS, state=LinearState(*state))


@pytest.mark.parametrize("algorithm", [CPP])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(algorithm, bad):
    q, k, v = (x.float() for x in features(5))
    k[:, 2] = bad
    outputs, _ = algorithm(q, k, v, eps=EPS, phi=Elu(8))
    assert outputs[:, :2].isfinite().all()
    assert not outputs[:, 2:].isfinite().any()


@pytest.mark.parametrize("algorithm", [parallel, *FAST])
@pytest.mark.parametrize("cut", [1, 16, 23, 64])
def test_a_sequence_can_be_continued_from_its_state(algorithm, cut):
    q, k, v = features(65)
    expected, expected_state = algorithm(q, k, v, eps=EPS)
    first, state = algorithm(q[:, :cut], k[:, :cut], v[:, :cut], eps=EPS)
    kept = LinearState(*(x.clone() for x in state))
    second, end = algorithm(q[:, cut:], k[:, cut:], v[:, cut:], eps=EPS, state=state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), expected)
    torch.testing.assert_close(end, expected_state)
    torch.testing.assert_close(state, kept, rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", FAST)
@pytest.mark.parametrize("t", [1, 5, 17])
def test_gradients_are_right(algorithm, t):
    q, k, v = (x.requires_grad_() for x in features(t, b=1, h=2, d=3))
    state = LinearState(
        torch.rand(1, 2, 3, 3, dtype=torch.float64, requires_grad=True),
        torch.rand(1, 2, 3, dtype=torch.float64, requires_grad=True),
    )

    def run(q, k, v, kv_sum, k_sum):
        outputs, end = algorithm(q, k, v, eps=EPS, state=LinearState(kv_sum, k_sum))
        return outputs, *end

    assert torch.autograd.gradcheck(run, (q, k, v, *state))


@pytest.mark.parametrize("algorithm", FAST)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_is_summed_in_float32(algorithm, dtype):
    """At full length: a bf16 running sum would be off by 238 %, not by rounding of the output."""
    q, k, v = (x.to(dtype) for x in features(3072, b=1, h=2, d=16))
    expected, _ = parallel(*(x.double() for x in (q, k, v)), eps=EPS)
    outputs, state = algorithm(q, k, v, eps=EPS)
    assert outputs.dtype == dtype
    assert {x.dtype for x in state} == {torch.float32}
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(outputs.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("algorithm", FAST)
def test_autocast_does_not_round_the_sums(algorithm):
    q, k, v = (x.float() for x in features(130))
    expected, _ = algorithm(q, k, v, eps=EPS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, state = algorithm(q, k, v, eps=EPS)
        step_output, _ = step(q[:, 0], k[:, 0], v[:, 0], state, eps=EPS)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0)
    assert step_output.dtype == torch.float32


@pytest.mark.parametrize("algorithm", FAST)
def test_half_precision_gradients_stay_within_rounding(algorithm):
    q, k, v = features(257, b=1, h=2, d=16)
    weight = torch.randn_like(v)

    def gradients(dtype):
        inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        outputs, _ = algorithm(*inputs, eps=EPS)
        return torch.autograd.grad((outputs * weight.to(dtype)).sum(), inputs)

    for exact, rounded in zip(gradients(torch.float64), gradients(torch.bfloat16), strict=True):
        error = (rounded.double() - exact).norm() / exact.norm()
        assert error < 0.01


@pytest.mark.parametrize("algorithm", FAST)
def test_no_weight_gives_zero_instead_of_nan(algorithm):
    zeros = torch.zeros(1, 3, 1, 2)
    outputs, _ = algorithm(zeros, zeros, torch.ones(1, 3, 1, 2), eps=EPS)
    torch.testing.assert_close(outputs, zeros)


@NEEDS_COMPILER
def test_auto_is_cpp_where_there_is_a_compiler():
    assert LinearAttention(2, 8, feature_map=Elu).kernel_on(torch.device("cpu")) == "cpp"


def test_where_there_is_no_compiler_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    compiled.cache_clear()
    try:
        asked = LinearAttention(2, 8, feature_map=Elu, kernel="cpp")
        with pytest.raises(ValueError, match=r"kernel=cpp cannot run: .*kernel=auto"):
            asked.kernel_on(torch.device("cpu"))
        with pytest.raises(ValueError, match=r"kernel=cpp cannot run: .*kernel=auto"):
            asked(*torch.ones(3, 1, 5, 2, 8))
        auto = LinearAttention(2, 8, feature_map=Elu)
        assert auto.kernel_on(torch.device("cpu")) == "chunkwise"
        assert not list(tmp_path.rglob("*.so"))
    finally:
        compiled.cache_clear()


@pytest.mark.parametrize("attention", [partial(LinearAttention, feature_map=Elu), DeltaAttention])
def test_tensors_on_several_devices_are_refused(attention, raises_one_line):
    """A kernel would read whatever memory is there."""
    q, k, v = (x.float() for x in random_qkv(4))
    layer = attention(q.shape[2], q.shape[3])
    with raises_one_line("Tensors on cpu and meta were given"):
        layer(q.to("meta"), k, v)
