"""Causal linear attention in CUDA: `cuda_linear.cu`, compiled for the present GPU when it is first
wanted, by the CUDA toolkit's nvcc.

The paper's own way on a GPU, from the first position to the last, where `triton_linear` computes
the chunks of a sequence side by side.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.kernels.compiling import call, compiled
from linear_transformers.kernels.operator import attend, operator, refuse, too_wide
from linear_transformers.ops.precision import widened
from linear_transformers.ops.recurrent import LinearState

SOURCE = "cuda_linear.cu"
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
WIDEST = 256  # features and values of a head


def cuda(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    *,
    eps: float,
    state: LinearState | None = None,
    elu: bool = False,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """The same function as `parallel`, on CUDA. See `cpp` for what the arguments are.

    Raises:
        ValueError: The kernel cannot be compiled here; the tensors are on another device, in
            float64, or have heads that are wider than 256.
    """
    refuse("cuda", too_wide(q, v, WIDEST))
    dtype = v.dtype
    if q.dtype != dtype or k.dtype != dtype:  # features, of a map that is not in the kernel
        q, k, v = widened(q, k, v)
    outputs, state = attend(_operator, q, k, v, eps=eps, state=state, elu=elu)
    return outputs.to(dtype), state


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot run; None where it can. Compiles it, at the first call ever."""
    if device.type != "cuda":
        return f"it is made for GPUs, and the tensors are on {device}"
    if dtype == torch.float64:
        return "it has no float64"
    library = compiled(SOURCE)
    return library if isinstance(library, str) else None


def _forward(given: Sequence[Tensor], eps: float, elu: bool, results: Sequence[Tensor]) -> None:
    _call("forward", given[:3], (*given[3:], *results), ctypes.c_double(eps), elu)


def _backward(given: Sequence[Tensor], elu: bool, gradients: Sequence[Tensor]) -> None:
    weight = given[6]
    _call("backward", given[:3], (*given[3:], *gradients, torch.empty_like(weight)), elu)


_operator = operator("cuda_causal", _forward, _backward)


def _call(name: str, views: Sequence[Tensor], dense: Sequence[Tensor], *others) -> None:
    v = views[2]
    refuse("cuda", unavailable(v.device, v.dtype))
    library: Any = compiled(SOURCE)
    error = call(
        getattr(library, f"{name}_{NAMES[v.dtype]}"), views, dense, *others, _stream(v.device)
    )
    if error:
        library.message.restype = ctypes.c_char_p
        raise RuntimeError(f"kernel=cuda failed: {library.message(error).decode()}.")


def _stream(device: torch.device) -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
