"""The cost of a step at several positions of a sequence, of several steppers side by side."""

import time
from collections.abc import Mapping
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from linear_transformers.distributions import ValueDistribution
from linear_transformers.sampling.completion import prefill
from linear_transformers.sampling.stepper import Loop, Stepper


@torch.inference_mode()
def step_milliseconds(
    steppers: Mapping[str, Stepper],
    distribution: ValueDistribution,
    *,
    length: int,
    batch: int,
    positions: int = 8,
    steps: int = 8,
    rounds: int = 3,
    once: frozenset[str] = frozenset(),
) -> dict[str, dict[int, float]]:
    """Return the milliseconds to draw one value of each sequence and read it, at some positions.

    Steppers take turns at evenly spaced positions, for several rounds, of which the median counts.

    Args:
        steppers: The steppers by name, all on one device.
        distribution: The distribution of a value.
        length: The number of values of a sequence, at least 4.
        batch: The number of sequences side by side.
        positions: The number of positions at which steps are measured.
        steps: The number of consecutive steps in a measurement. They do not go past the end of
            the sequence.
        rounds: The number of measurements at a position.
        once: The names of steppers that take a single step at each position, since each costs a
            whole forward pass.

    Returns:
        The milliseconds by the name of the stepper, and by position.
    """
    device = next(iter(steppers.values())).device
    # One sequence, forked: a prefill of a large batch would take far more memory than a step
    # does, and a step costs the same whatever was read.
    rows = torch.zeros(batch, dtype=torch.long, device=device)
    medians: dict[str, dict[int, float]] = {name: {} for name in steppers}
    # A warm-up step and then `steps` must fit after the last position.
    steps = max(1, min(steps, length // (2 * positions) - 1))
    for position in (length * i // (2 * positions) for i in range(1, 2 * positions, 2)):
        position = min(position, length - 2 - steps)
        values = torch.randint(distribution.num_values, (1, length))
        known = torch.arange(length) < position
        noise = torch.rand(batch, length, distribution.noise_dim, device=device)
        starts = {name: prefill(x, values, known) for name, x in steppers.items()}
        times: dict[str, list[float]] = {name: [] for name in steppers}
        for turn in range(rounds):
            for name, stepper in steppers.items():
                if turn and name in once:
                    continue
                loop = stepper.loop(stepper.fork(starts[name], rows), distribution.sample, noise)
                if name not in once:
                    loop.turn()  # warms up the caches
                times[name].append(_milliseconds(loop, 1 if name in once else steps, device))
        for name, found in times.items():
            medians[name][position] = median(found)
    return medians


@torch.inference_mode()
def launches_per_step(stepper: Stepper, distribution: ValueDistribution, *, length: int) -> int:
    """Return the number of kernels and copies that a GPU runs to draw a value and read it."""
    values, known = torch.zeros(1, length, dtype=torch.long), torch.arange(length) < length // 2
    noise = torch.rand(1, length, distribution.noise_dim, device=stepper.device)
    loop = stepper.loop(prefill(stepper, values, known), distribution.sample, noise)
    loop.turn()
    _synchronize(stepper.device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        loop.turn()
        _synchronize(stepper.device)
    return sum(event.device_type.name == "CUDA" for event in profiler.events() or ())


def _milliseconds(loop: Loop, turns: int, device: torch.device) -> float:
    """Return the mean milliseconds of a turn."""
    _synchronize(device)
    begin = time.perf_counter()
    for _ in range(turns):
        loop.turn()
    _synchronize(device)
    return 1000 * (time.perf_counter() - begin) / turns


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
