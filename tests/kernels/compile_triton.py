"""Compile every Triton kernel for an H100, where there need not be one, and say what each takes.

    TRITON_INTERPRET=0 python -m tests.kernels.compile_triton
    TRITON_INTERPRET=0 python -m tests.kernels.compile_triton bfloat16:32 float32:256
    PYTHONPATH=FOLDER TRITON_INTERPRET=0 python -m tests.kernels.compile_triton   # another Triton

A process of its own: TRITON_INTERPRET is not set in it. Calls compile their kernels and launch
none of them; what they return means nothing. Each line is a kernel, as JSON.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from linear_transformers.feature_maps import Elu
from linear_transformers.kernels import triton_linear, triton_step
from linear_transformers.ops.recurrent import LinearState

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
# An instruction of a listing, without its predicate.
INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", re.MULTILINE
)
REGISTERS, SHARED_MEMORY = 2**16, 227 * 1024  # of a multiprocessor of an H100 or H200
WIDTHS = (16, 32, 64, 128, 256)
DTYPES = ("float32", "bfloat16", "float16")
LENGTHS = (1, 16, 65)  # Triton likes to compile for ones and multiples of 16 apart


class NoGPU:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    compiled: list[tuple[str, Any]] = []
    run = jit.JITFunction.run

    def compile_only(self, *arguments, grid, warmup=False, **options):
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        compiled.append((self.__name__, kernel))

    driver.set_active(NoGPU())
    jit.JITFunction.run = compile_only
    triton_linear.unavailable = triton_step.unavailable = lambda device, dtype: None
    for case in sys.argv[1:] or [f"{dtype}:{width}" for dtype in DTYPES for width in WIDTHS]:
        dtype, width = case.split(":")
        compiled.clear()
        call(getattr(torch, dtype), int(width))
        for name, kernel, launches in different(compiled):
            about = {"kernel": name, "dtype": dtype, "width": int(width), "launches": launches}
            print(json.dumps({**about, **takes(kernel)}), flush=True)


def call(dtype: torch.dtype, width: int) -> None:
    """Call every kernel at several lengths, with and without segments and a state."""
    phi = Elu(width)
    state = LinearState(torch.zeros(2, 2, width, width), torch.zeros(2, 2, width))
    for segments in (1, 3):
        triton_linear.segments_for = lambda *_, segments=segments: segments
        for length in LENGTHS if segments == 1 else (65,):
            given = [
                torch.ones(2, length, 2, width, dtype=dtype, requires_grad=True) for _ in range(3)
            ]
            outputs, _ = triton_linear.triton_linear(*given, eps=1e-6, phi=phi)
            torch.autograd.grad(outputs, given, torch.ones_like(outputs))
    one = [torch.ones(2, 2, width, dtype=dtype) for _ in range(3)]
    triton_step.triton_step(*one, state, eps=1e-6, phi=phi)


def different(compiled: list[tuple[str, Any]]) -> Iterator[tuple[str, Any, int]]:
    """Yield each kernel once, and the number of its launches."""
    for name, kernel in {id(kernel): (name, kernel) for name, kernel in compiled}.values():
        yield name, kernel, sum(kernel is other for _, other in compiled)


def takes(kernel: Any) -> dict[str, Any]:
    """Return what a compiled kernel takes: registers and spills of a thread, instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage, listing = (
            subprocess.run(
                [CUOBJDUMP, option, file.name], check=True, capture_output=True, text=True
            ).stdout
            for option in ("-res-usage", "-sass")
        )
    instructions = INSTRUCTION.findall(listing)

    def count(*beginnings: str) -> int:
        return sum(instruction.startswith(beginnings) for instruction in instructions)

    (registers,), (stack,) = re.findall(r"REG:(\d+)", usage), re.findall(r"STACK:(\d+)", usage)
    warps, shared = kernel.metadata.num_warps, kernel.metadata.shared
    # Registers are given out to a warp by 256.
    fit = REGISTERS // (warps * -(-int(registers) * 32 // 256) * 256)
    return {
        "programs_at_once": min(fit, SHARED_MEMORY // shared) if shared else fit,
        "registers": int(registers),
        "spilled_bytes": int(stack),
        "shared_bytes": shared,
        "instructions": len(instructions),
        "matrix": count("HMMA"),
        "asynchronous_matrix": count("HGMMA"),
        "asynchronous_loads": count("LDGSTS"),
        "roundings_to_tf32": kernel.asm["ptx"].count("cvt.rna.tf32"),
    }


if __name__ == "__main__":
    main()
