"""Dropout in C++ for CPUs: `cpp_dropout.cpp`, compiled on first use."""

import ctypes

import torch
from torch import Tensor

from linear_transformers.kernels.compiling import compiled, uncompiled

SOURCE = "cpp_dropout.cpp"
WORD = 0xFFFFFFFF
NAMES = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat16"}


def unavailable(x: Tensor, out: Tensor) -> str | None:
    """Return why the kernel cannot run, or None. The first call compiles it."""
    if reason := uncompiled(SOURCE, x.device):
        return reason
    if not hasattr(compiled(SOURCE), _name(x, out)):
        return f"it is not made for {x.dtype} and {out.dtype}"
    return None


def cpp_dropout(
    x: Tensor,
    out: Tensor,
    draw: tuple[int, ...],
    *,
    place: int,
    threshold: int,
    scale: float,
    relu: bool,
    residual: Tensor | None,
    activated: Tensor | None,
) -> None:
    """Write dropout of x, or a gradient, into a tensor. All tensors are contiguous.

    Args:
        x: The numbers [b, t, e].
        out: The result.
        draw: See `ops.dropout.Draw`.
        place: The number of the module.
        threshold: See `ops.dropout.threshold`.
        scale: See `ops.dropout.scale`.
        relu: Whether dropout is of max(x, 0).
        residual: What is added, in the type of the result; None is nothing.
        activated: The result of an earlier call with `relu`, in the type of this one's; the
            gradient by the x of that call is then written, and x is the gradient by its result.
    """
    tensors = (x, residual, activated, out)
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    words = [word & WORD for word in (*draw, place)]
    call = _Call(*pointers, *x.shape, *words, threshold, scale, relu)
    getattr(compiled(SOURCE), _name(x, out))(ctypes.byref(call))


def _name(x: Tensor, out: Tensor) -> str:
    return f"{NAMES.get(x.dtype)}_to_{NAMES.get(out.dtype)}"


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "residual", "activated", "out")),
        *((name, ctypes.c_int64) for name in ("batch", "length", "width")),
        *((name, ctypes.c_uint32) for name in ("seed", "step", "first", "start", "place")),
        ("threshold", ctypes.c_uint32), ("scale", ctypes.c_double), ("relu", ctypes.c_bool),
    )  # fmt: skip
