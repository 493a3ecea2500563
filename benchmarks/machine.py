"""The clock, the threads and the memory bandwidth of a device."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

COPIED, COPIES = 2**28, 4  # bytes of a copy, more than any cache holds; copies per timing


def now(device: str) -> float:
    """Return the time in seconds, once the device has finished all queued work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_copy(device: str) -> float:
    """Return the bandwidth of a large copy: bytes read and written per second."""
    source = torch.ones(COPIED // 4, device=device)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(5):
        start = now(device)
        for _ in range(COPIES):
            target.copy_(source)
        best = min(best, (now(device) - start) / COPIES)
    return 2 * COPIED / best


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Compute with so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
