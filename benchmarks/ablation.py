"""Train the variants of a model with the same seeds, and compare them in pairs.

    uv run python -m benchmarks.ablation digits                    all that is missing, and a table
    uv run python -m benchmarks.ablation espeak --seeds 0 1 --variants linear softmax
    uv run python -m benchmarks.ablation digits --cores 0 1 2 3

A run is one thread on one core, and as many run as there are cores. Runs are named after their
variant and seed: those that are done are taken as they are, one that was stopped is continued. The
table is written to results/ablation-NAME.json after each.

A variant's figure is that of its best validation, on the test set, as a mean over seeds with their
standard deviation. Its difference from a reference is paired, seed by seed, and has two standard
errors: that of the seeds, of the mean of the differences; and that of the test set, by a jackknife
over small batches, of the difference that all seeds have in the mean. Negative is better.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from benchmarks.collect import source_of
from benchmarks.record import Measurement
from linear_transformers.pictures.tables import markdown
from linear_transformers.runs.folder import Run
from linear_transformers.tasks.base import Statistics
from linear_transformers.tasks.loading import load
from linear_transformers.tracking.record import summary

ROOT = Path(__file__).parent.parent
# Exact and comparable: one thread, float32, nothing drawn on the way.
ALWAYS = ("trainer=cpu", "trainer.precision=32-true", "logger=none", "callbacks.samples.n=0")

LINEAR, SOFTMAX, BEST = ("model=linear",), ("model=softmax",), ("model=linear_conv",)
CONVOLUTION = ("model.mixer.short_convolution=4",)
GATE = ("model.mixer.output_norm=true", "model.mixer.output_gate=silu")
BLOCK = ("model.norm_type=rms", "model.activation=swiglu")
POSITIONS = ("model.positions=none",)
MUON, RADAM = ("optimizer=muon",), ("optimizer=radam",)
DROPOUT = ("model.dropout=0.2",)
GIVEN = "softmax, given the same"


class Plan(NamedTuple):
    """An ablation.

    Attributes:
        arguments: What all variants have in common.
        batch: The data's options that make test batches small: the jackknife's parts.
        references: The variants that all others are compared with.
        variants: The arguments of each.
    """

    arguments: tuple[str, ...]
    batch: dict[str, Any]
    references: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]


# What was found on the digits, at the size of larger images.
IMAGES = (
    ("softmax", GIVEN),
    {
        "linear": (*LINEAR, *RADAM),
        "softmax": (*SOFTMAX, *RADAM),
        "linear_conv, Muon": (*BEST, *MUON),
        GIVEN: (*SOFTMAX, *CONVOLUTION, *GATE, *MUON),
    },
)
PLANS = {
    "digits": Plan(
        ("data=digits", "model.dropout=0.1"),
        {"batch_size": 4},
        ("softmax", GIVEN),
        {
            "linear": (*LINEAR, *RADAM),
            "softmax": (*SOFTMAX, *RADAM),
            "linear_conv, Muon, dropout 0.2": (*BEST, *MUON, *DROPOUT),
            GIVEN: (*SOFTMAX, *CONVOLUTION, *GATE, *MUON, *DROPOUT),
            "linear_conv": (*BEST, *RADAM),
            "linear_conv, Muon": (*BEST, *MUON),
            "linear_conv, Muon, dropout 0.2, twice the rate": (
                *(*BEST, *MUON, *DROPOUT, "optimizer.lr=4e-2"),
            ),
            "linear, convolution": (*LINEAR, *RADAM, *CONVOLUTION),
            "linear, norm and gate": (*LINEAR, *RADAM, *GATE),
            "linear, RMS norm and SwiGLU": (*LINEAR, *RADAM, *BLOCK),
            "linear, query-key norm": (*LINEAR, *RADAM, "model.mixer.qk_norm=rms"),
            "linear, rotary": (*LINEAR, *RADAM, "model.mixer.rotary=true"),
            "linear, axial positions": (*LINEAR, *RADAM, "model.positions=axial"),
            "linear, Muon": (*LINEAR, *MUON),
            "linear, dropout 0.2": (*LINEAR, *RADAM, *DROPOUT),
            "softmax, convolution": (*SOFTMAX, *RADAM, *CONVOLUTION),
            "softmax, Muon, dropout 0.2": (*SOFTMAX, *MUON, *DROPOUT),
            "gated_delta, Muon, dropout 0.2": ("model=gated_delta", *MUON, *DROPOUT),
            "retention, Muon, dropout 0.2": ("model=retention", *MUON, *DROPOUT),
        },
    ),
    "espeak": Plan(
        ("data=espeak", "model.positions=added", *RADAM),
        {"batch_frames": 1000},
        ("softmax", GIVEN),
        {
            "linear": LINEAR,
            "softmax": SOFTMAX,
            "linear_conv, no positions": (*BEST, *POSITIONS),
            GIVEN: (*SOFTMAX, *CONVOLUTION, *GATE, *POSITIONS),
            "linear, no positions": (*LINEAR, *POSITIONS),
            "softmax, no positions": (*SOFTMAX, *POSITIONS),
            "linear, convolution": (*LINEAR, *CONVOLUTION),
        },
    ),
    "mnist-small": Plan(("experiment=beyond/mnist-small",), {"batch_size": 50}, *IMAGES),
    "cifar-small": Plan(("experiment=beyond/cifar-small",), {"batch_size": 50}, *IMAGES),
}


class Job(NamedTuple):
    """A run of an ablation."""

    name: str
    variant: str
    seed: int
    runs: Path

    @property
    def folder(self) -> Path:
        words = f"ablation-{self.name}-{self.variant}-{self.seed}"
        return self.runs / words.replace(", ", "-").replace(" ", "_")

    @property
    def figures(self) -> dict[str, Any]:
        """The run's figures, as far as it got."""
        return summary(self.folder / "metrics.jsonl")

    @property
    def is_done(self) -> bool:
        return any(name.startswith("test_") for name in self.figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", help="unset, all")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--overrides", nargs="+", default=[], help="arguments of train.py, last")
    options = parser.parse_args()
    plan = PLANS[options.name]
    variants = options.variants or list(plan.variants)
    for variant in variants:
        if variant not in plan.variants:
            raise SystemExit(f"error: {variant} is no variant. Choose of {list(plan.variants)}.")
    torch.set_num_threads(1)
    title = f"Ablation on {options.name}: differences are paired by seed, less is better"
    measurement = Measurement(f"ablation-{options.name}", title, device="cpu", seeds=options.seeds)
    jobs = [
        Job(options.name, variant, seed, options.runs)
        for seed in options.seeds
        for variant in variants
    ]
    rows: list[dict[str, Any]] = []
    for _ in run(jobs, plan, options.cores, options.overrides):
        done = [job for job in jobs if job.is_done]
        rows = table(done, plan)
        sources = [source_of(job.folder) for job in done]
        for source in sources:
            source.pop("curves")
        seconds = sum(source["seconds"] for source in sources)
        measurement.save(rows, sources=sources, seconds=seconds)
    print(markdown(rows))
    print(f"written to {measurement.path}")


def run(
    jobs: Sequence[Job], plan: Plan, cores: Sequence[int], overrides: Sequence[str]
) -> Iterator[None]:
    """Run what is not done, one job a core, and yield at the start and after each."""
    free: SimpleQueue[int] = SimpleQueue()
    for core in cores:
        free.put(core)

    def train(job: Job) -> None:
        core = free.get()
        command = [
            *(sys.executable, "train.py", *plan.arguments, *plan.variants[job.variant], *ALWAYS),
            *(f"seed={job.seed}", f"paths.runs={job.folder.parent.resolve()}"),
            *(f"run_id={job.folder.name}", "resume=auto", *overrides),
        ]
        finished = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        free.put(core)
        if finished.returncode:
            raise SystemExit(f"{' '.join(command)}\n{finished.stdout}{finished.stderr}")

    with ThreadPoolExecutor(len(cores)) as pool:
        yield
        for _ in pool.map(train, [job for job in jobs if not job.is_done]):
            yield


def table(jobs: Sequence[Job], plan: Plan) -> list[dict[str, Any]]:
    """Return a row for each variant that has runs."""
    runs = {(job.variant, job.seed): job for job in jobs}
    rows = []
    for variant in dict.fromkeys(job.variant for job in jobs):
        mine = [job for job in jobs if job.variant == variant]
        names = [name for name in mine[0].figures if name.startswith(("val_", "test_"))]
        val, test = (next(name for name in names if name.startswith(s)) for s in ("val_", "test_"))
        figures = [job.figures for job in mine]
        row = {"variant": variant, "runs": len(mine)}
        row |= {val: round(fmean(each[val] for each in figures), 4)}
        row |= {test: round(fmean(each[test] for each in figures), 4)}
        if len(mine) > 1:
            row |= {"deviation": round(stdev(each[test] for each in figures), 4)}
        for reference in plan.references:
            pairs = [
                (job, runs[reference, job.seed]) for job in mine if (reference, job.seed) in runs
            ]
            if pairs and variant != reference:
                row |= difference(pairs, plan, f"against {reference}")
        rows.append(row | {"arguments": " ".join(plan.variants[variant])})
    return rows


def difference(pairs: Sequence[tuple[Job, Job]], plan: Plan, name: str) -> dict[str, str]:
    """Return the mean difference of pairs of runs, with its two standard errors.

    Args:
        pairs: Runs of a variant and of its reference, with the same seed.
        plan: The ablation.
        name: The name of the column.
    """
    parts = [[jackknifed(job.folder, tuple(plan.batch.items())) for job in pair] for pair in pairs]
    differences = [mine[0] - its[0] for mine, its in parts]
    left_out = [  # for each part of the test set, the mean over seeds without it
        fmean(mine[1][i] - its[1][i] for mine, its in parts) for i in range(len(parts[0][0][1]))
    ]
    n, mean = len(left_out), fmean(left_out)
    of_test_set = ((n - 1) / n * sum((x - mean) ** 2 for x in left_out)) ** 0.5
    text = f"{fmean(differences):+.3f}"
    if len(pairs) > 1:
        text += f" ± {stdev(differences) / len(pairs) ** 0.5:.3f} seeds"
    return {name: f"{text} ± {of_test_set:.3f} test set"}


@cache
def jackknifed(folder: Path, batch: tuple[tuple[str, Any], ...]) -> tuple[float, list[float]]:
    """Return a run's figure on the test set, and those without each batch in turn."""
    kept = folder / "jackknife.json"
    if kept.is_file():
        return tuple(json.loads(kept.read_text()))
    trained = load(Run(folder).best_checkpoint())
    data = trained.data.with_options(**dict(batch))
    with torch.no_grad():
        found = [trained.task.statistics(each) for each in data().loader("test")]
    whole: Statistics = {name: sum(each[name] for each in found) for name in found[0]}  # pyright: ignore

    def figure(sums: Statistics) -> float:
        return trained.task.judge(sums)[trained.task.figure.name].item()

    without = [figure({name: whole[name] - each[name] for name in whole}) for each in found]
    kept.write_text(json.dumps((figure(whole), without)))
    return figure(whole), without


if __name__ == "__main__":
    main()
