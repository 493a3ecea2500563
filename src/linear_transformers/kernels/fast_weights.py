"""The decaying and correcting recurrences as one torch operator for CPUs: `cpp_fast_weights.cpp`.

Elsewhere `ops.decayed` and `ops.delta` are called as they are.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from linear_transformers.kernels.call import SIZES, VIEWS, View, call
from linear_transformers.kernels.compiling import compiled, uncompiled
from linear_transformers.kernels.operator import (
    check_device,
    constant,
    gradients_of,
    is_differentiated_again,
    is_transformed,
    registered,
    state_shapes,
)
from linear_transformers.ops import decayed as decaying
from linear_transformers.ops import delta as correcting
from linear_transformers.ops.precision import accumulation_dtype, without_autocast

SOURCE = "cpp_fast_weights.cpp"
WIDEST = 128  # measured: at 160 and more, products of chunks are faster
NAMES = {torch.float32: "float", torch.float64: "double"}
INPUTS = ("q", "k", "v", "strength", "log_decay", "state")
GRADIENTS = tuple(f"d_{name}" for name in INPUTS)


@constant
def unavailable(device: torch.device, width: int) -> str | None:
    """Return why the kernel does not run, or None. The first call compiles it.

    Args:
        device: The device of the tensors.
        width: The width of a head, of keys or of values.
    """
    if width > WIDEST:
        return f"matrix products are faster for heads wider than {WIDEST}, and these are {width}"
    return uncompiled(SOURCE, device)


def kernel_on(device: torch.device, width: int) -> str:
    """Return the name of what runs: see `unavailable`."""
    return "chunkwise" if unavailable(device, width) else "cpp"


def _compiled(defined: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    """Return a recurrence of `ops` as the kernel computes it, where that runs.

    Args:
        defined: The recurrence. The last of its gates is the decay; one before that, the strength.

    Raises:
        ValueError: The state is that of other sequences or heads.
    """

    @wraps(defined)
    def run(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *gates: Tensor,
        state: Tensor | None = None,
        chunk_size: int = 32,
    ) -> tuple[Tensor, Tensor]:
        reason = unavailable(v.device, max(k.shape[-1], v.shape[-1]))
        if reason or is_transformed(q, k, v, *gates, state):
            return defined(q, k, v, *gates, state=state, chunk_size=chunk_size)
        check_device(q, k, v, *gates, state)
        *strength, log_decay = gates
        inputs = (q, k, v, *(strength or [None]), log_decay, state)
        # The kernel reads memory by these sizes, whatever it is given.
        assert k.shape == q.shape
        assert all(x.shape[:3] == q.shape[:3] for x in (v, *gates))
        assert all(x.shape[3] == 1 for x in strength)
        assert log_decay.shape[3] in (1, q.shape[3])
        size, _ = state_shapes(q, v)
        if state is not None and state.shape != size:
            raise ValueError(
                f"The state is {list(state.shape)}; these inputs need {list(size)}. Give the state "
                "of the same sequences, or None."
            )
        dtype, wide = v.dtype, accumulation_dtype(v.dtype)
        with without_autocast(v):
            outputs, after = _forward_op(*(None if x is None else x.to(wide) for x in inputs))
        return outputs.to(dtype), after

    return run


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor | None,
    log_decay: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    out, after = _fake_forward(q, k, v)
    _call("forward", (q, k, v, strength, log_decay, state), out=out, after=after)
    return out, after


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), v.new_empty(state_shapes(q, v)[0])


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor | None,
    log_decay: Tensor,
    state: Tensor | None,
    d_out: Tensor,
    d_after: Tensor | None,
    wanted: list[bool],
) -> list[Tensor]:
    """Return the gradients of the inputs that want one, those of q, k and v in any case."""
    inputs = (q, k, v, strength, log_decay, state)
    found = _fake_backward(*inputs, d_out, d_after, wanted)
    names = [name for name, want in zip(GRADIENTS, wanted, strict=True) if want]
    _call("backward", inputs, d_out=d_out, d_after=d_after, **dict(zip(names, found, strict=True)))
    return found


def _fake_backward(*given: Any) -> list[Tensor]:
    *inputs, _, _, wanted = given
    return [x.new_empty(x.shape) for x, want in zip(inputs, wanted, strict=True) if want]


def _keep(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, d_out: Tensor | None, d_after: Tensor | None
) -> tuple[Tensor | None, ...]:
    q, k, v, *others = ctx.saved_tensors
    if is_differentiated_again():
        return tuple(gradients_of(_defined, (q, k, v, *others), (d_out, d_after)))
    d_out = torch.zeros_like(v) if d_out is None else d_out  # of the state alone
    wanted = [True] * 3 + list(ctx.needs_input_grad[3:])
    found = iter(_backward_op(q, k, v, *others, d_out, d_after, wanted))
    return tuple(next(found) if want else None for want in wanted)


def _defined(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor | None,
    log_decay: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute in PyTorch's operators what the kernel does."""
    if strength is None:
        return decaying.decayed(q, k, v, log_decay, state=state)
    return correcting.delta(q, k, v, strength, log_decay, state=state)


def _call(name: str, inputs: Sequence[Any], **others: Tensor | None) -> None:
    tensors: dict[str, Any] = dict(zip(INPUTS, inputs, strict=True)) | others
    function = getattr(compiled(SOURCE), f"{name}_{NAMES[tensors['v'].dtype]}")
    call(function, _Call, tensors, decays=tensors["log_decay"].shape[-1])


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in (*SIZES, "decays")),
        *((name, View) for name in VIEWS),
        *((name, ctypes.c_void_p)
          for name in (*INPUTS[3:], "out", "after", "d_out", "d_after", *GRADIENTS)),
    )  # fmt: skip


_forward_op = registered("fast_weights", _forward, _fake_forward, _differentiate, _keep)
_backward_op = registered("fast_weights_backward", _backward, _fake_backward)

decayed = _compiled(decaying.decayed)
delta = _compiled(correcting.delta)
