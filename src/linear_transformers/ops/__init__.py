"""Causal linear attention as pure functions of tensors: no modules, no parameters, no config.

`parallel` is the O(t^2) definition and the oracle of the tests, `chunkwise` the O(t) form
in plain PyTorch, `cpp` the same compiled for CPUs, `triton_linear` and `cuda` for GPUs, `peers`
that of other libraries, `recurrent.step` one position. Queries and keys are features: phi has
already been applied. Every algorithm over a whole sequence has one signature,

    (q, k, v, *, eps, state=None) -> (outputs, state after the sequence)

and a name in `KERNELS`.

`bidirectional` sums over everything. Other mechanisms have modules of their own: `lsh`, `sparse`,
and, unnormalised, `decayed` and `delta`.
"""

from linear_transformers.ops.bidirectional import read, summarize
from linear_transformers.ops.chunkwise import chunkwise
from linear_transformers.ops.cpp import cpp
from linear_transformers.ops.cpp_step import rounded
from linear_transformers.ops.cpp_step import unavailable as step_unavailable
from linear_transformers.ops.kernels import (
    KERNELS,
    chosen,
    step_in_place,
    triton_unavailable,
)
from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.recurrent import LinearState, empty_state, step

__all__ = [
    "KERNELS",
    "LinearState",
    "chosen",
    "chunkwise",
    "cpp",
    "empty_state",
    "normalize",
    "parallel",
    "read",
    "rounded",
    "step",
    "step_in_place",
    "step_unavailable",
    "summarize",
    "triton_unavailable",
]
