"""What a device does: when it is done, and how fast it copies."""

import math
import time

import torch

COPIED, COPIES = 2**28, 4  # bytes, more than any cache holds; and how often, between two looks


def now(device: str) -> float:
    """Seconds, when all that was asked of the device is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_copy(device: str) -> float:
    """Bytes a second, read and written, of a large copy."""
    source = torch.ones(COPIED // 4, device=device)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(5):
        start = now(device)
        for _ in range(COPIES):
            target.copy_(source)
        best = min(best, (now(device) - start) / COPIES)
    return 2 * COPIED / best
