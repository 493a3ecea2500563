"""Sums are kept in float32 at least, whatever the inputs are.

A bf16 state is wrong by 26 % after 784 steps and by 238 % after 3072; a float16 normaliser
overflows and the output is silently 0.
"""

import math
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

WORTHWHILE = 1.2  # times as fast; measured so far: 0.5, and 2.4
SIDE, ROUNDS = 512, 6  # of the matrices that say so: 20 ms in all


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums over inputs of a type: float64 for float64, otherwise float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widened(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in the types of sums over them."""
    return tuple(x.to(accumulation_dtype(x.dtype)) for x in tensors)


def faster_in_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies matrices faster in bfloat16 than in float32.

    On a CPU that has instructions for it, this is measured, once: without AMX, some processors
    multiply bfloat16 at half the rate of float32, others at more than twice that.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = getattr(torch.cpu, "get_capabilities", dict)()  # not in earlier versions of torch
    has_it = bool(known.get("avx512_bf16") or known.get("amx_bf16"))
    return device.type == "cpu" and has_it and _cpu_speedup() > WORTHWHILE


@cache
def _cpu_speedup() -> float:
    """Return the time of a product in float32 over that in bfloat16, of the fastest of each."""
    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    with torch.inference_mode():
        for _ in range(ROUNDS):
            for dtype, fastest in seconds.items():
                x = torch.ones(SIDE, SIDE, dtype=dtype)
                start = time.perf_counter()
                x @ x
                seconds[dtype] = min(fastest, time.perf_counter() - start)
    return seconds[torch.float32] / seconds[torch.bfloat16]


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
