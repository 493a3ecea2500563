"""Sums are kept in float32 at least, whatever the inputs are.

A bf16 state is wrong by 26 % after 784 steps and by 238 % after 3072; a float16 normaliser
overflows and the output is silently 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums over inputs of a type: float64 for float64, otherwise float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widened(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the types of sums over them."""
    return tuple(x.to(accumulation_dtype(x.dtype)) for x in tensors)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 in hardware: faster than float32, then."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = getattr(torch.cpu, "get_capabilities", dict)()  # not in earlier versions of torch
    return device.type == "cpu" and bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def mapped(phi: Callable[[Tensor], Tensor] | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return phi of each tensor, widened first; without a phi, the tensors as they are."""
    if phi is None:
        return tensors
    # In bf16, 1 + x would forget all but 8 bits of a small x.
    with without_autocast(tensors[0]):
        return tuple(phi(x) for x in widened(*tensors))


def without_autocast(x: Tensor) -> torch.autocast:
    """Return a context without autocast, which would round the factors of widened sums again."""
    kind = x.device.type
    return torch.autocast("cpu" if kind == "meta" else kind, enabled=False)  # meta has none
