"""Causal linear attention in C++ for CPUs: `cpp_linear.cpp`, compiled when it is first wanted.

The same function as `chunkwise`, with the paper's feature map fused where it is asked for.
"""

import ctypes
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.kernels.compiling import call, compiled
from linear_transformers.kernels.operator import attend, operator, refuse
from linear_transformers.ops.precision import widened
from linear_transformers.ops.recurrent import LinearState

SOURCE = "cpp_linear.cpp"
NAMES = {torch.float32: "float32", torch.float64: "float64"}


def cpp(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    *,
    eps: float,
    state: LinearState | None = None,
    elu: bool = False,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """The same function as `parallel`, in O(t) time, keeping one number a position and head.

    Args:
        q: Features of the queries, or with `elu` the queries themselves.
        k: Features of the keys, or with `elu` the keys themselves.
        v: Values.
        eps: See `normalize`.
        state: The past before the first position; empty when absent. Left unmodified.
        elu: Whether phi(x) = elu(x) + 1 is still to be applied to queries and keys.

    Returns:
        The outputs in the type of `v`, and the state after the last position.

    Raises:
        ValueError: The kernel cannot be compiled here, or the tensors are on another device.
    """
    dtype = v.dtype
    outputs, state = attend(_operator, *widened(q, k, v), eps=eps, state=state, elu=elu)
    return outputs.to(dtype), state


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot run; None where it can. Compiles it, at the first call ever."""
    if device.type != "cpu":
        return f"it is made for CPUs, and the tensors are on {device}"
    library = compiled(SOURCE)
    return library if isinstance(library, str) else None


def _forward(given: Sequence[Tensor], eps: float, elu: bool, results: Sequence[Tensor]) -> None:
    _call("forward", given[:3], (*given[3:], *results), ctypes.c_double(eps), elu)


def _backward(given: Sequence[Tensor], elu: bool, gradients: Sequence[Tensor]) -> None:
    _call("backward", given[:3], (*given[3:], *gradients), elu)


_operator = operator("cpp_causal", _forward, _backward)


def _call(name: str, views: Sequence[Tensor], dense: Sequence[Tensor], *others) -> None:
    v = views[2]
    refuse("cpp", unavailable(v.device, v.dtype))
    call(getattr(compiled(SOURCE), f"{name}_{NAMES[v.dtype]}"), views, dense, *others)
