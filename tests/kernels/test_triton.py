"""Triton's kernels against parallel: on a GPU where there is one, else in Triton's interpreter."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linear_transformers import kernels
from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.recurrent import LinearState, empty_state, step
from tests.kernels.comparing import DEVICE, EPS, check_parts, errors, exactly, inputs, results

pytest.importorskip("triton", reason="Triton is not for this system")

from linear_transformers.kernels import triton_linear as triton_linear_module
from linear_transformers.kernels.triton_linear import FUSED, launch_for, triton_linear
from linear_transformers.kernels.triton_step import triton_step
from linear_transformers.testing import random_qkv

CHUNK = launch_for(32, torch.float32).chunk
COMPILED = ("float32:32", "bfloat16:32", "float16:32", "bfloat16:64", "bfloat16:256")


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("t", "c", "m"),
    [(1, 16, 16), (CHUNK, 5, 17), (CHUNK + 1, 32, 32), (3 * CHUNK - 1, 16, 8), (70, 70, 130)],
)
def test_it_reproduces_parallel(t, c, m, fused):
    """At odd lengths and widths, from a state, with all gradients."""
    given = inputs(t, c, m)
    phi = Elu(c)
    found = results(triton_linear, given, phi=phi if fused else phi.forward)
    expected = results(parallel, exactly(given), phi=phi)
    assert max(errors(found, expected)) < 2e-6


@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_segments_do_not_change_what_it_computes(monkeypatch, segments):
    """The last of three is shorter; five are one for each chunk."""
    monkeypatch.setattr(triton_linear_module, "segments_for", lambda *_: segments)
    given = inputs(4 * CHUNK + 3, 20, 16)
    found = results(triton_linear, given, phi=Elu(20))
    expected = results(parallel, exactly(given), phi=Elu(20))
    assert max(errors(found, expected)) < 2e-6


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize(("c", "m"), [(32, 20), (5, 40)])
def test_the_start_of_sequences_and_some_gradients_alone(monkeypatch, segments, c, m):
    monkeypatch.setattr(triton_linear_module, "segments_for", lambda *_: segments)
    check_parts(triton_linear, 2 * CHUNK + 3, c, m)


def test_the_widest_heads_and_those_that_are_too_wide(raises_one_line):
    given = inputs(40, 256, 200, b=1)
    found = results(triton_linear, given, phi=Elu(256))
    assert max(errors(found, results(parallel, exactly(given), phi=Elu(256)))) < 2e-6
    with raises_one_line("kernel=triton", "256", "257", "kernel=auto"):
        triton_linear(*inputs(3, 257, 8)[:3], eps=EPS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    given = inputs(2 * CHUNK + 3, 32, 32, dtype=dtype)
    found = results(triton_linear, given, phi=Elu(32))
    expected = results(parallel, exactly(given), phi=Elu(32))
    assert [x.dtype for x in found[:3]] == [dtype, torch.float32, torch.float32]
    assert max(errors(found, expected)) < 2 * torch.finfo(dtype).eps


def test_queries_keys_and_values_may_lie_in_one_tensor(monkeypatch):
    packed = torch.randn(2, 21, 3, 2, 16, device=DEVICE)
    views = packed.unbind(2)
    assert not views[0].is_contiguous()
    run = partial(triton_linear, eps=EPS, phi=Elu(16))
    found, end = run(*views)
    expected, exact_end = run(*(x.contiguous() for x in views))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(end, exact_end)
    monkeypatch.setattr(triton_linear_module, "FURTHEST", 96)  # as if they were too far apart
    torch.testing.assert_close(run(*views)[0], expected)
    turned = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in views]  # gaps in a row
    torch.testing.assert_close(run(*turned)[0], expected)


@pytest.mark.parametrize(("sequences", "given"), [(1, 3), (3, 1)])
def test_a_step_with_the_state_of_others_is_refused(sequences, given, raises_one_line):
    state = empty_state(sequences, 2, 4, 4, dtype=torch.float32, device=DEVICE)
    inputs = torch.randn(3, given, 2, 4, device=DEVICE)
    with raises_one_line(f"sums of [{sequences}, 2, 4, 4]", f"need [{given}, 2, 4, 4]"):
        triton_step(*inputs, state, eps=EPS)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's numpy
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(bad):
    q, k, v = (x.float().to(DEVICE) for x in random_qkv(5))
    k[:, 2] = bad
    outputs, _ = triton_linear(q, k, v, eps=EPS, phi=Elu(8))
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


def test_every_kernel_compiles_for_a_gpu_that_need_not_be_here():
    """Without asynchronous products, and, at the paper's size, without a spilled register."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.kernels.compile_triton", *COMPILED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    scans = [row for row in rows if row["kernel"] == "_scan"]
    assert {row["kernel"] for row in rows} == {"_scan", "_sum_segments", "_step"}
    for row in rows:
        launch = launch_for(row["width"], getattr(torch, row["dtype"]))
        assert row["kernel"] == "_step" or row["programs_at_once"] >= launch.programs, row
        assert row["asynchronous_matrix"] == 0, row
        assert row["spilled_bytes"] <= 128, row
    for row in scans:
        assert row["matrix"], row
        if row["dtype"] == "bfloat16":
            assert row["spilled_bytes"] == 0 or row["width"] == 128, row
        if row["width"] <= 64:
            assert row["asynchronous_loads"], row
    assert all(row["roundings_to_tf32"] for row in scans)  # of the state that is read
    for case in COMPILED:
        dtype, width = case.split(":")
        ours = [row for row in scans if (row["dtype"], row["width"]) == (dtype, int(width))]
        # Outputs and gradients, each compiled once for three lengths.
        assert [row["launches"] for row in ours].count(3) == (3 if int(width) <= FUSED else 4)


class Launches(TorchDispatchMode):
    """What a GPU would be given: our kernels, and all of torch's operations but views and new
    memory."""

    FREE = ("empty", "detach", "alias", "view", "unbind", "select", "as_strided")

    def __init__(self, monkeypatch):
        super().__init__()
        self.names: list[str] = []
        for kernel in ("_sum_segments", "_scan"):
            monkeypatch.setattr(triton_linear_module, kernel, self)

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.names.append("ours")

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        if not any(free in name for free in self.FREE) and "triton_causal" not in name:
            self.names.append(name)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(
    ("width", "segments", "forward", "backward"),
    [(32, 1, 1, 2), (32, 4, 2, 3), (64, 1, 1, 3), (64, 4, 2, 4)],
)
def test_a_layer_launches_few_kernels(monkeypatch, width, segments, forward, backward):
    """No zeros are written for a state that nobody gave, nor for gradients that nobody asked."""
    monkeypatch.setattr(triton_linear_module, "segments_for", lambda *_: segments)
    inputs = [torch.randn(2, 130, 2, width, device=DEVICE).bfloat16() for _ in range(3)]
    given, gradient = [x.requires_grad_() for x in inputs], torch.ones_like(inputs[0])
    with Launches(monkeypatch) as launches:
        outputs, _ = triton_linear(*given, eps=EPS, phi=Elu(width))
        assert launches.names == ["ours"] * forward
        torch.autograd.grad(outputs, given, gradient)
        assert launches.names == ["ours"] * (forward + backward)


def test_where_it_cannot_run_auto_goes_elsewhere(raises_one_line, monkeypatch):
    q, k, v = (x.to(DEVICE) for x in random_qkv(5))
    with raises_one_line("kernel=triton", "float64", "kernel=auto"):
        triton_linear(q, k, v, eps=EPS)
    gpu = torch.device("cuda")
    assert kernels.chosen("auto", gpu, torch.float64) == "chunkwise"
    assert kernels.chosen("auto", gpu, width=256) == "triton"
    assert kernels.chosen("auto", gpu, width=257) == "chunkwise"
    with raises_one_line("kernel=triton", "256", "257", "kernel=auto"):
        kernels.chosen("triton", gpu, width=257)
    asked_anew = triton_linear_module._lacks.__wrapped__
    monkeypatch.setattr(triton_linear_module, "_lacks", asked_anew)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, name in (((7, 5), "chunkwise"), ((8, 0), "triton")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, c=capability: c)
        assert kernels.chosen("auto", gpu) == name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("c", "m"), [(1, 1), (32, 32), (20, 33), (256, 40)])
def test_its_step_is_the_step_in_place(c, m, dtype):
    """Several positions, as queries, keys and values lie in one product."""
    phi = Elu(c)
    state = empty_state(3, 2, c, m, device=DEVICE, dtype=dtype)
    expected_state = LinearState(*(x.double() for x in state))
    for _ in range(4):
        q, k, v = (torch.randn(3, 2, width, device=DEVICE).to(dtype) for width in (c, c, m))
        packed = torch.stack([q, k], dim=1)
        output, state = triton_step(*packed.unbind(1), v, state, eps=EPS, phi=phi)
        features = (phi(x.double()) for x in (q, k))
        expected, expected_state = step(*features, v.double(), expected_state, eps=EPS)
        assert output.dtype == dtype
        tolerance = max(1e-6, torch.finfo(dtype).eps)
        torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
        for found, exact in zip(state, expected_state, strict=True):
            torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gradients", [True, False])
def test_attention_steps_in_place_where_no_gradient_needs_the_state(gradients):
    attention = LinearAttention(2, 8, feature_map=Elu)
    inputs = [torch.randn(3, 2, 8, device=DEVICE, requires_grad=gradients) for _ in range(3)]
    state = attention.init_state(3, device=DEVICE)
    expected, _ = attention.step(*inputs, state)
    with torch.set_grad_enabled(gradients):
        output, after = attention.step_in_place(*inputs, state)
    torch.testing.assert_close(output, expected)
    assert (after is state) == (not gradients)
    if gradients:
        found, wanted = (torch.autograd.grad(out.sum(), inputs) for out in (output, expected))
        torch.testing.assert_close(found, wanted)


def test_its_step_takes_features_of_any_map():
    q, k, v = (torch.randn(3, 2, 8, device=DEVICE) for _ in range(3))
    state = empty_state(3, 2, 8, 8, device=DEVICE, dtype=q.dtype)
    expected = step(q.exp(), k.exp(), v, state, eps=EPS)
    found = triton_step(q, k, v, state, eps=EPS, phi=torch.exp)
    torch.testing.assert_close(found, expected)
    assert found[1] is state


def test_its_step_is_an_operator_to_torch():
    q, k, v = (torch.rand(3, 2, 8, device=DEVICE) for _ in range(3))
    state = empty_state(3, 2, 8, 8, device=DEVICE, dtype=q.dtype)
    torch.library.opcheck(
        torch.ops.linear_transformers.triton_step.default, (q, k, v, *state, EPS, True)
    )
