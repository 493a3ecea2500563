"""Compile every Triton kernel for an H100, where there need not be one, and say what each takes.

A process of its own: TRITON_INTERPRET is not set in it. Calls compile their kernels and launch
none of them; what they return means nothing.
"""

import json
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from linear_transformers.feature_maps import Elu
from linear_transformers.kernels import triton_linear, triton_step
from linear_transformers.ops.recurrent import LinearState

# Of values, features and values of a head, programs that a GPU is thought to need: few are one
# segment, many as many as there are.
SIZES = (
    (torch.float32, 32, 32, 1024), (torch.float32, 64, 64, 1), (torch.float32, 256, 256, 1),
    (torch.bfloat16, 64, 64, 1), (torch.float16, 256, 256, 1),
)  # fmt: skip


class NoGPU:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    compiled: dict[str, int] = {}
    run = jit.JITFunction.run

    def compile_only(self, *arguments, grid, warmup=False, **options):
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        assert kernel.asm["cubin"]
        name = self.__name__
        compiled[name] = max(kernel.metadata.shared, compiled.get(name, 0))

    driver.set_active(NoGPU())
    jit.JITFunction.run = compile_only
    triton_linear.unavailable = triton_step.unavailable = lambda device, dtype: None
    for dtype, c, m, programs in SIZES:
        triton_linear.PROGRAMS = programs
        q, k, v = (torch.ones(2, 65, 2, width, dtype=dtype) for width in (c, c, m))
        given = [x.requires_grad_() for x in (q, k, v)]
        outputs, _ = triton_linear.triton_linear(*given, eps=1e-6, phi=Elu(c))
        outputs.sum().backward()
        state = LinearState(torch.zeros(2, 2, c, m), torch.zeros(2, 2, c))
        one = (x.detach()[:, 0] for x in given)
        triton_step.triton_step(*one, state, eps=1e-6, phi=Elu(c))
    json.dump(compiled, sys.stdout)


if __name__ == "__main__":
    main()
