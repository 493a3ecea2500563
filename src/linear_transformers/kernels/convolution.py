"""The short convolution as a torch operator for CPUs, whose kernel is `cpp_convolution.cpp`.

Elsewhere `ops.convolution` is called as it is, and a compiler can fuse it.
"""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linear_transformers.kernels.compiling import compiled, uncompiled
from linear_transformers.kernels.operator import is_differentiated_again, is_transformed, registered
from linear_transformers.ops.convolution import convolved as defined
from linear_transformers.ops.precision import accumulation_dtype

SOURCE = "cpp_convolution.cpp"
NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
MOST_TAPS = 8


def unavailable(x: Tensor, taps: int) -> str | None:
    """Return why the kernel cannot run, or None. The first call compiles it."""
    if x.dtype not in NAMES:
        return f"it is not made for {x.dtype}"
    if taps > MOST_TAPS:
        return f"it is made for up to {MOST_TAPS} taps"
    return uncompiled(SOURCE, x.device)


def convolved(
    x: Float[Tensor, "b t channels"], weight: Float[Tensor, "taps channels"], *, ahead: int = 0
) -> Float[Tensor, "b t channels"]:
    """Compute `ops.convolution.convolved`, on CPUs in one pass if there is a compiler.

    Raises:
        ValueError: The inputs have other channels than the weights.
    """
    if x.ndim != 3 or x.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"The convolution was given {list(x.shape)}, and takes [batch, time, "
            f"{weight.shape[-1]} channels]."
        )
    if x.device.type != "cpu" or is_transformed(x, weight) or torch.compiler.is_exporting():
        return defined(x, weight, ahead=ahead)
    return _forward_op(x, weight.to(accumulation_dtype(x.dtype)), ahead)


def _forward(x: Tensor, weight: Tensor, ahead: int) -> Tensor:
    if unavailable(x, len(weight)):
        return defined(x, weight, ahead=ahead)
    y = _fake_forward(x)
    _call("forward", x, weight, ahead, y=y)
    return y


def _fake_forward(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape)  # contiguous, whatever x is


def _backward(d_y: Tensor, x: Tensor, weight: Tensor, ahead: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, and of the weights for each sequence."""
    if unavailable(x, len(weight)):
        return _defined_gradients(d_y, x, weight, ahead)
    d_x, d_weight = _fake_backward(d_y, x, weight)
    _call("backward", x, weight, ahead, d_y=d_y.contiguous(), d_x=d_x, d_weight=d_weight)
    return d_x, d_weight


def _defined_gradients(d_y: Tensor, x: Tensor, weight: Tensor, ahead: int) -> tuple[Tensor, Tensor]:
    behind, length = len(weight) - 1 - ahead, x.shape[1]
    padded = F.pad(x, (0, 0, behind, ahead)).to(weight.dtype)
    d_weight = [(d_y * padded[:, j : j + length]).sum(1) for j in range(len(weight))]
    return defined(d_y, weight.flip(0), ahead=behind), torch.stack(d_weight, dim=1)


def _fake_backward(d_y: Tensor, x: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(len(x), *weight.shape)


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, weight, ctx.ahead = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    backward = _defined_gradients if is_differentiated_again() else _backward_op
    d_x, d_weight = backward(d_y, x, weight, ctx.ahead)
    return d_x, d_weight.sum(0), None  # in the order of the batch, whatever the threads


def _call(name: str, x: Tensor, weight: Tensor, ahead: int, **dense: Tensor) -> None:
    x = x if x.stride(-1) == 1 else x.contiguous()
    weight = weight.contiguous()
    pointers = {key: tensor.data_ptr() for key, tensor in {"weight": weight, **dense}.items()}
    call = _Call(
        x=x.data_ptr(), **pointers, batch=x.shape[0], length=x.shape[1], channels=x.shape[2],
        taps=len(weight), ahead=ahead, x_batch=x.stride(0), x_row=x.stride(1),
    )  # fmt: skip
    getattr(compiled(SOURCE), f"{name}_{NAMES[x.dtype]}")(ctypes.byref(call))


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "d_y", "y", "d_x", "d_weight")),
        *((name, ctypes.c_int64)
          for name in ("batch", "length", "channels", "taps", "ahead", "x_batch", "x_row")),
    )  # fmt: skip


_forward_op = registered("short_convolution", _forward, _fake_forward, _differentiate, _keep)
_backward_op = registered("short_convolution_backward", _backward, _fake_backward)
