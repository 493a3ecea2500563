"""The most that a device can do, and has done."""

import resource
import sys
import time

import torch

# The side of the matrices whose product measures a device's peak: large enough to reach it.
PEAK_SIZE = {"cpu": 1024, "cuda": 8192}
PEAK_ROUNDS = 5


def peak_flops(device: torch.device, precision: str) -> float:
    """Measure the FLOPs per second of a large matrix product in a run's precision."""
    others = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}
    dtype = others.get(precision.split("-")[0], torch.float32)
    size = PEAK_SIZE.get(device.type, 1024)
    # Random: a GPU computes the product of ones with less power, and faster.
    generator = torch.Generator(device).manual_seed(0)
    options = {"device": device, "dtype": dtype, "generator": generator}
    a, b = (torch.randn(size, size, **options) for _ in range(2))
    best = float("inf")
    for _ in range(PEAK_ROUNDS):
        start = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of tensors on a GPU, of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident if sys.platform == "darwin" else 1024 * resident
