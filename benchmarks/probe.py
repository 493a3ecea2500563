"""What a machine with a GPU has, and whether our kernels compute there what they should.

    uv run python -m benchmarks.probe
    PTXAS=FILE uv run python -m benchmarks.probe      also with another assembler of Triton's code

The first thing to run on a new machine, in about three minutes. Every check is a process of its
own; they run side by side, and one that fails costs the others nothing. Each is a row:

    imports     what train.py and the tests import
    assembler   of Triton's code, by version
    exact       products of whole numbers in bfloat16: sums over a sequence are the same numbers
    rounding    outputs in half precision are as often too large as too small
    memcheck, racecheck     compute-sanitizer finds nothing in our kernels

Exact and rounding are checked with each assembler, as kernels are compiled by default and with four
warps and chunks of 64, whose products are asynchronous.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.apart import run_apart
from benchmarks.machine import now
from benchmarks.operators import compile_with
from benchmarks.record import Measurement
from benchmarks.usage import parser_of
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.recurrent import LinearState
from linear_transformers.pictures.tables import markdown

MODULES = (
    "torch", "torchvision", "torchaudio", "triton", "lightning", "torchmetrics", "hydra",
    "omegaconf", "jaxtyping", "pydantic", "rich", "soundfile", "rapidfuzz", "ninja", "fla",
    "pytest", "xdist", "beartype", "linear_transformers.jobs.train",
)  # fmt: skip
WIDTHS = (32, 64)  # of heads
LONG, SHORT = (4, 777, 4), (1, 70, 2)  # batch, length, heads
WAYS = {"": {}, "chunks of 64, 4 warps": {"chunk": 64, "warps": 4}}
SECONDS = 150


class Check(NamedTuple):
    """A check in a process of its own.

    Attributes:
        name: What is checked.
        way: How: words for the table.
        command: The process.
        environment: What is changed for it.
    """

    name: str
    way: str
    command: list[str]
    environment: dict[str, str] | None = None


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--check", choices=CHECKS, help=argparse.SUPPRESS)
    parser.add_argument("--way", default="", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check:
        if changes := WAYS[options.way]:
            compile_with(changes)
        print(CHECKS[options.check](options.device))
        return
    measurement = Measurement(
        f"probe-{options.device}", "A machine, and our kernels on it", device=options.device,
        seeds=[0],
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    checks = planned(options.device)
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        for check, (good, found) in zip(checks, pool.map(outcome, checks), strict=True):
            rows.append({"check": check.name, "how": check.way, "good": good, "found": found})
            measurement.save(rows)
    print(f"{markdown(rows)}\nwritten to {measurement.path}")


def planned(device: str) -> list[Check]:
    """Return the checks, those that take longest first."""
    own = [sys.executable, "-m", "benchmarks.probe", "--device", device, "--check"]
    checks = []
    sanitizer = shutil.which("compute-sanitizer")
    for tool in ("memcheck", "racecheck"):
        command = [sanitizer or "compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
        checks.append(Check(tool, "triton, step", [*command, *own, "run"]))
    checks.append(Check("imports", "", [*own, "imports"]))
    for name, path in assemblers().items():
        for way in WAYS:
            changes = {}
            if path:  # what is compiled is kept apart; by default, for the stages that follow
                folder = f"{tempfile.gettempdir()}/triton-{name}"
                changes = {"TRITON_PTXAS_PATH": str(path), "TRITON_CACHE_DIR": folder}
            how = ", ".join(filter(None, (name, way)))
            checks += [
                Check(check, how, [*own, check, "--way", way], changes)
                for check in ("exact", "rounding")
            ]
    checks += [
        Check("assembler", name, [str(path or triton_ptxas()), "--version"])
        for name, path in assemblers().items()
    ]
    return checks


def assemblers() -> dict[str, Path | None]:
    """Return the assemblers to try, by a short name: the one of all stages is None."""
    other = os.environ.get("PTXAS")
    return {"default": None, **({"other": Path(other).resolve()} if other else {})}


def triton_ptxas() -> Path:
    """Return the assembler that Triton takes: the one that is set, or its own."""
    folders = getattr(find_spec("triton"), "submodule_search_locations", None) or [""]
    own = Path(folders[0]) / "backends/nvidia/bin/ptxas"
    return Path(os.environ.get("TRITON_PTXAS_PATH") or own)


def outcome(check: Check) -> tuple[bool, str]:
    """Run a check; return whether it is good, and the last line that it printed."""
    printed, failure = run_apart(check.command, seconds=SECONDS, environment=check.environment)
    return failure is None, failure or (printed.strip().splitlines() or [""])[-1]


def imports(device: str) -> str:
    """Import every module; each that cannot be is named."""
    missing = []
    for name in MODULES:
        try:
            import_module(name)
        except ImportError as error:
            missing.append(f"{name} ({error})")
    assert not missing, ", ".join(missing)
    return f"all {len(MODULES)}"


def exact(device: str) -> str:
    """Compare sums of products of whole numbers, which are exact in bfloat16 and float32."""
    for width in WIDTHS:
        q, k, v = _inputs(width, device, torch.bfloat16, largest=3)
        found, end = _triton(q, k, v)
        expected, exact_end = parallel(*(x.double() for x in (q, k, v)), eps=1.0)
        for sums, others in zip(end, exact_end, strict=True):
            wrong = (sums.double() != others).sum().item()
            assert not wrong, f"{wrong} of {sums.numel()} sums of the state are wrong"
        error = ((found.double() - expected).abs().max() / expected.abs().max()).item()
        assert error < 2**-7, f"an output is off by {error:.3g} of the largest"
        gradients = (
            _gradients(_triton, (q, k, v)),
            _gradients(parallel, [x.double() for x in (q, k, v)]),
        )
        for name, ours, theirs in zip("qkv", *gradients, strict=True):
            error = ((ours.double() - theirs).abs().max() / theirs.abs().max()).item()
            assert error < 2**-3, f"a gradient of {name} is off by {error:.3g} of the largest"
    return "all sums exact"


def rounding(device: str) -> str:
    """Compare the mean of outputs, which is too small if products cut their operands off."""
    found = []
    # Triton's interpreter, on a CPU, cuts bfloat16 off.
    dtypes = (torch.float16, *([torch.bfloat16] if device == "cuda" else []))
    for dtype, width in product(dtypes, WIDTHS):
        q, k, v = _inputs(width, device, dtype)
        ours, _ = _triton(q, k, v)
        exactly, _ = parallel(*(x.double() for x in (q, k, v)), eps=1.0)
        found.append((ours.double().mean() / exactly.mean() - 1).item())
    worst = max(map(abs, found))
    assert worst < 2e-4, f"outputs are off by {worst:.2%} on the mean"
    return f"off by {worst:.4%} on the mean"


def run(device: str) -> str:
    """Call our kernels on few positions, for the sanitizer."""
    from linear_transformers.kernels.triton_step import triton_step

    width = WIDTHS[0]
    q, k, v = _inputs(width, device, torch.bfloat16, size=SHORT)
    _gradients(_triton, (q, k, v))
    sizes = SHORT[0], SHORT[2], width
    state = LinearState(
        torch.zeros(*sizes, width, device=device), torch.zeros(sizes, device=device)
    )
    triton_step(q[:, 0], k[:, 0], v[:, 0], state, eps=1.0)
    now(device)
    return "ran"


CHECKS: dict[str, Callable[[str], str]] = {
    "imports": imports, "exact": exact, "rounding": rounding, "run": run,
}  # fmt: skip


def _triton(*tensors: torch.Tensor, **options: Any) -> Any:
    from linear_transformers.kernels.triton_linear import triton_linear

    return triton_linear(*tensors, **{"eps": 1.0, **options})


def _inputs(
    width: int,
    device: str,
    dtype: torch.dtype,
    *,
    size: tuple[int, int, int] | None = None,
    largest: int | None = None,
) -> list[torch.Tensor]:
    """Return q, k and v, positive; whole numbers up to the largest, if it is given."""
    generator = torch.Generator().manual_seed(0)
    shape = (*(size or (LONG if device == "cuda" else SHORT)), width)
    if largest is None:
        tensors = [0.5 + torch.rand(shape, generator=generator) for _ in range(3)]
    else:
        tensors = [torch.randint(largest + 1, shape, generator=generator) for _ in range(3)]
    return [x.to(device, dtype) for x in tensors]


def _gradients(algorithm: Any, tensors: Any) -> tuple[torch.Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    outputs, _ = algorithm(*leaves, eps=1.0)
    weights = torch.linspace(-1, 1, outputs.numel(), device=outputs.device).reshape(outputs.shape)
    return torch.autograd.grad(outputs, leaves, weights.to(outputs.dtype))


if __name__ == "__main__":
    main()
