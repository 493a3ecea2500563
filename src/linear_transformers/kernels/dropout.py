"""Dropout as a torch operator, whose kernels compute what `ops.dropout` defines.

To `torch.compile` it is an opaque call with a known output shape. The backward pass is the same
call on the gradient: it computes the mask again.
"""

from typing import Any

import torch
from torch import Tensor

from linear_transformers.kernels import cpp_dropout
from linear_transformers.kernels.operator import is_differentiated_again, is_transformed, registered
from linear_transformers.kernels.registry import has_triton
from linear_transformers.ops.dropout import Draw, scale, threshold
from linear_transformers.ops.dropout import dropout as defined
from linear_transformers.shapes import Hidden


def dropout(
    x: Hidden,
    draw: Draw,
    *,
    rate: float,
    place: int,
    residual: Hidden | None = None,
    relu: bool = False,
) -> Hidden:
    """Compute `ops.dropout.dropout`, in one pass over x and the residual.

    Args:
        x: The numbers.
        draw: The draw of this forward pass.
        rate: The share that is dropped.
        place: The number of the module.
        residual: What the result is added to; None is nothing. Not together with `relu`.
        relu: Whether x is first mapped to max(x, 0).

    Returns:
        The sum, in the type that x and the residual have together.
    """
    assert not (relu and residual is not None)
    if is_transformed(x, residual):
        x = x.relu() if relu else x
        return defined(x, draw, rate=rate, place=place, residual=residual)
    return _forward_op(x, residual, draw, rate, place, relu)


def _forward(
    x: Tensor, residual: Tensor | None, draw: Tensor, rate: float, place: int, relu: bool
) -> Tensor:
    out = _fake_forward(x, residual)
    _run(x, out, draw, rate, place, relu=relu, residual=residual)
    return out


def _fake_forward(x: Tensor, residual: Tensor | None, *others: Any) -> Tensor:
    dtype = x.dtype if residual is None else torch.result_type(x, residual)
    return x.new_empty(x.shape, dtype=dtype)


def _backward(
    d_out: Tensor,
    activated: Tensor | None,
    draw: Tensor,
    rate: float,
    place: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the gradient by x; `activated` is the result that it had with `relu`."""
    d_x = _fake_backward(d_out, dtype)
    _run(d_out, d_x, draw, rate, place, activated=activated)
    return d_x


def _fake_backward(d_out: Tensor, *others: Any) -> Tensor:
    return d_out.new_empty(d_out.shape, dtype=others[-1])


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, residual, draw, ctx.rate, ctx.place, relu = inputs
    ctx.dtypes = x.dtype, None if residual is None else residual.dtype
    ctx.save_for_backward(draw, output if relu else None)


def _differentiate(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
    (draw, activated), (dtype, of_residual) = ctx.saved_tensors, ctx.dtypes
    if not is_differentiated_again():
        d_x = _backward_op(d_out, activated, draw, ctx.rate, ctx.place, dtype)
    elif activated is None:
        d_x = _forward_op(d_out, None, draw, ctx.rate, ctx.place, False).to(dtype)
    else:
        d_x = _through_relu(d_out, activated, ctx.rate).to(dtype)
    d_residual = None if of_residual is None else d_out.to(of_residual)
    return d_x, d_residual, None, None, None, None


def _run(
    x: Tensor,
    out: Tensor,
    draw: Tensor,
    rate: float,
    place: int,
    *,
    relu: bool = False,
    residual: Tensor | None = None,
    activated: Tensor | None = None,
) -> None:
    """Write into `out`, by the fastest kernel that can; see `cpp_dropout`."""
    x = x.contiguous()
    residual, activated = (
        None if other is None else other.to(out.dtype).contiguous()
        for other in (residual, activated)
    )
    if x.device.type == "cuda" and has_triton():
        from linear_transformers.kernels.triton_dropout import triton_dropout as kernel
    elif cpp_dropout.unavailable(x, out) is None:
        kernel = cpp_dropout.cpp_dropout
    else:
        if activated is None:
            x = x.relu() if relu else x
            out.copy_(defined(x, draw, rate=rate, place=place, residual=residual))
        else:
            out.copy_(_through_relu(x, activated, rate))
        return
    numbers = {"place": place, "threshold": threshold(rate), "scale": scale(rate)}
    others = {"relu": relu, "residual": residual, "activated": activated}
    kernel(x, out, tuple(draw.tolist()), **numbers, **others)


def _through_relu(d_out: Tensor, activated: Tensor, rate: float) -> Tensor:
    return torch.where(activated <= 0, 0, d_out * scale(rate))  # what was kept is positive, or NaN


_forward_op = registered("dropout", _forward, _fake_forward, _differentiate, _keep)
_backward_op = registered("dropout_backward", _backward, _fake_backward)
