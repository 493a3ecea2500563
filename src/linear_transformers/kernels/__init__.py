"""Compiled implementations of linear attention, and the registry that selects among them.

Every kernel of causal linear attention over a sequence is one call,

    run(q, k, v, *, eps, phi=None, state=None) -> (outputs, state after the sequence)

and a name in `KERNELS`, beside those that `ops` has in plain PyTorch. `fast_weights` computes the
recurrences that decay and correct, `cpp_step` one position of a whole stack, `triton_step` one
position of one layer.
"""

from linear_transformers.kernels.cpp_step import levels, rounded
from linear_transformers.kernels.cpp_step import unavailable as step_unavailable
from linear_transformers.kernels.registry import (
    KERNELS,
    check_known,
    chosen,
    step_in_place,
    triton_unavailable,
)

__all__ = [
    "KERNELS",
    "check_known",
    "chosen",
    "levels",
    "rounded",
    "step_in_place",
    "step_unavailable",
    "triton_unavailable",
]
