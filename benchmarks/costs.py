"""What the variants of an ablation cost: a training step, a step of sampling, the state.

    uv run python -m benchmarks.costs digits-models
    uv run python -m benchmarks.costs mnist-small --variants linear softmax --batch 64

Variants are those of benchmarks/plans.py, with weights at random, which cost the same. They take
turns, in float32; medians count. A training step is the loss and its gradients on one batch of the
data, without an optimizer; where batches differ, as those of speech do, it is the mean of an epoch,
which is measured whole. Of sequences, a step of sampling is measured by the stepper that
sample.py would choose, by the model's own step in PyTorch, and by running `forward` again, without
a cache: like with like, at a quarter, a half and three quarters of a sequence's length or nearby.
"""

import argparse
import time
from collections.abc import Iterable
from itertools import chain, repeat
from statistics import fmean, median
from typing import Any

import torch

from benchmarks.machine import thread_count
from benchmarks.plans import PLANS
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of, refusing
from linear_transformers.config.choices import checked
from linear_transformers.config.folder import Configurations
from linear_transformers.jobs.composition import composed
from linear_transformers.jobs.options import TrainJob
from linear_transformers.pictures.tables import markdown
from linear_transformers.sampling import (
    RecomputedStepper,
    RecurrentStepper,
    Stepper,
    step_milliseconds,
    stepper_of,
)
from linear_transformers.tasks.base import Task
from linear_transformers.tasks.loading import build_task
from linear_transformers.tasks.sequences import SequenceTask
from linear_transformers.training.memory import keep_freed_memory

POSITIONS = 3  # of a sequence, at which steps are measured


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--variants", nargs="+", help="unset, all")
    parser.add_argument("--batch", type=count, default=16, help="sequences sampled side by side")
    parser.add_argument("--threads", type=count, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--overrides", nargs="+", default=[], help="arguments of train.py, last")
    options = parser.parse_args()
    keep_freed_memory()
    plan = PLANS[options.name]
    title = f"What models cost on {options.name}"
    measurement = Measurement(f"costs-{options.name}", title, device="cpu", seeds=[0])
    conf, loader = Configurations.of("train"), None
    tasks: dict[str, Task] = {}
    for variant in plan.chosen(options.variants):
        words = (*plan.arguments, *plan.variants[variant], *options.overrides)
        torch.manual_seed(0)
        with refusing():
            job = TrainJob(**checked(TrainJob, composed(conf, *words), ""))
            data = job.data()
            loader = data.loader("train") if loader is None else loader
            tasks[variant] = build_task(job.task, job.model, data.shape)
    assert loader is not None
    first = next(iter(loader))
    alike = all(isinstance(task, SequenceTask) for task in tasks.values())
    batches = repeat(first, options.rounds) if alike else loader
    with thread_count(options.threads):
        training = training_milliseconds(tasks, first, batches)
        sampling = sampling_costs(tasks, options)
        average = median if alike else fmean
        rows = [
            {
                "variant": variant,
                "parameters": sum(each.numel() for each in task.model.parameters()),
                "ms_per_training_step": round(average(training[variant]), 1),
                **({} if alike else {"seconds_per_epoch": round(sum(training[variant]) / 1000, 1)}),
                **sampling.get(variant, {}),
            }
            for variant, task in tasks.items()
        ]
    path = measurement.save(rows)
    print(f"{markdown(rows)}\nwritten to {path}")


def training_milliseconds(
    tasks: dict[str, Task], first: Any, batches: Iterable[Any]
) -> dict[str, list[float]]:
    """Return the milliseconds of the loss and its gradients on each batch, of each task in turns.

    Args:
        tasks: The tasks, by their names.
        first: A batch that is not counted: with it code is compiled, and memory allocated.
        batches: Those that are.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for batch in chain([first], batches):
        for name, task in tasks.items():
            task.model.train().zero_grad()
            begin = time.perf_counter()
            task.loss(batch).mean.backward()
            times[name].append(1000 * (time.perf_counter() - begin))
    return {name: found[1:] for name, found in times.items()}


def sampling_costs(
    tasks: dict[str, Task], options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Return the rates at which sequences are drawn, and the bytes of a sequence's state, of each
    task that has such, in turns."""
    drawn = {name: task for name, task in tasks.items() if isinstance(task, SequenceTask)}
    steppers: dict[str, dict[str, Stepper]] = {}
    for name, task in drawn.items():
        model = task.model.eval().requires_grad_(False)
        kinds = (stepper_of(model), RecurrentStepper(model), RecomputedStepper(model))
        steppers[name] = {stepper.name: stepper for stepper in kinds}
    found = {name: {method: [] for method in each} for name, each in steppers.items()}
    for _ in range(options.rounds):
        for name, task in drawn.items():
            times = step_milliseconds(
                steppers[name], task.distribution, length=task.shape.length, batch=options.batch,
                positions=POSITIONS, rounds=1, once=frozenset({RecomputedStepper.name}),
            )  # fmt: skip
            for method, by_position in times.items():
                found[name][method].append(fmean(by_position.values()))
    costs = {}
    for name, task in drawn.items():
        rates = {
            method: round(1000 * options.batch / (median(times) * task.shape.length), 3)
            for method, times in found[name].items()
        }
        chosen = next(iter(rates))
        costs[name] = {
            "stepper": chosen,
            "batch": options.batch,
            "sequences_per_second": rates[chosen],
            "in_pytorch": rates[RecurrentStepper.name],
            "without_a_cache": rates[RecomputedStepper.name],
            "state_bytes": task.model.stack.state_bytes(task.shape.length),
        }
    return costs


if __name__ == "__main__":
    main()
