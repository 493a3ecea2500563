"""Sums are kept in float32 at least, whatever the inputs are.

A bf16 state is wrong by 26 % after 784 steps and by 238 % after 3072; a float16 normaliser
overflows and the output is silently 0.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from linear_transformers.provenance import processor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums over inputs of a type: float64 for float64, otherwise float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widened(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the types of sums over them."""
    return tuple(x.to(accumulation_dtype(x.dtype)) for x in tensors)


def exact_dtype(device: torch.device) -> torch.dtype:
    """Return the type of sums that grow long: float64, but on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


@cache
def faster_in_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies matrices faster in bfloat16 than in float32.

    Processors without AMX have the same instructions for it, and AMD's are 2.4 times as fast with
    them as in float32, Intel's half as fast (both measured). It is not timed here: all processes
    of a run must come to the same answer, and so must its continuation.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = getattr(torch.cpu, "get_capabilities", dict)()  # not in earlier versions of torch
    fast = known.get("amx_bf16") or (known.get("avx512_bf16") and "AMD" in processor())
    return device.type == "cpu" and bool(fast)


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
