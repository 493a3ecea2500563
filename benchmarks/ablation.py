"""Train the variants of a model with the same seeds, and compare them in pairs.

    uv run python -m benchmarks.ablation digits                    all that is missing, and a table
    uv run python -m benchmarks.ablation espeak --seeds 0 1 --variants linear softmax
    uv run python -m benchmarks.ablation digits --cores 0 1 2 3

A run is one thread on one core, and as many run as there are cores. What results/ablation-NAME.json
has of earlier calls, on this machine or another, is taken as it is, unless its arguments were
others (those of paths aside): it is kept, but is not in the table. With RESULTS=FOLDER in the
environment, a table is made anew there. A run that was stopped is continued. The file is written
after each, and a line says how long the rest will take.

A variant's figure is that of its best validation, on the test set, as a mean over seeds with their
standard deviation. Its difference from a reference is paired, seed by seed, and has two standard
errors: that of the seeds, of the mean of the differences; and that of the test set, by a jackknife
over small batches, of the difference that all seeds have in the mean. Negative is better; level is
what lies within two standard errors, both together.
"""

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from datetime import timedelta
from math import hypot
from operator import sub
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean, median, median_low, mode, stdev
from threading import Event
from typing import Any, NamedTuple

import torch

from benchmarks import record
from benchmarks.apart import PROJECT
from benchmarks.collect import source_of
from benchmarks.plans import PLANS, Plan
from benchmarks.record import Measurement
from benchmarks.usage import parser_of, usable_core
from linear_transformers.pictures.tables import markdown
from linear_transformers.provenance import without_places
from linear_transformers.runs.folder import Run
from linear_transformers.runs.metrics import summary
from linear_transformers.stopping import Stopped, catching
from linear_transformers.tasks.base import Statistics
from linear_transformers.tasks.loading import load

# Exact and comparable: one thread, float32 unless a variant has another, nothing drawn on the way.
# The test is the ablation's own, which leaves out parts.
ALWAYS = (
    *("trainer=cpu", "trainer.precision=32-true", "test=false"),
    *("logger=none", "callbacks.samples.n=0"),
)

# Of each run, by variant and seed: see `record_of`.
Records = dict[tuple[str, int], dict[str, Any]]


class Job(NamedTuple):
    """A run of an ablation."""

    name: str
    variant: str
    seed: int
    runs: Path
    overrides: tuple[str, ...]

    @property
    def folder(self) -> Path:
        words = f"ablation-{self.name}-{self.variant}-{self.seed}"
        digest = hashlib.sha256(self.arguments.encode()).hexdigest()[:6]  # other ones, other runs
        return self.runs / f"{words.replace(', ', '-').replace(' ', '_')}-{digest}"

    @property
    def arguments(self) -> str:
        """What makes the run what it is, wherever it is made."""
        plan = PLANS[self.name]
        words = (*plan.arguments, *plan.variants[self.variant], *self.overrides)
        kept = (word for word in words if not word.startswith("paths."))
        return " ".join(without_places(word, near=False) for word in kept)

    @property
    def command(self) -> list[str]:
        plan = PLANS[self.name]
        return [
            *(sys.executable, "train.py", *ALWAYS, *plan.arguments, *plan.variants[self.variant]),
            *(f"seed={self.seed}", f"paths.runs={self.folder.parent.resolve()}"),
            *(f"run_id={self.folder.name}", "resume=auto", *self.overrides),
        ]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--seeds", type=int, nargs="+", help="unset, those of the plan")
    parser.add_argument("--variants", nargs="+", help="unset, all")
    parser.add_argument(
        "--cores", type=usable_core, nargs="+", default=sorted(os.sched_getaffinity(0))
    )
    parser.add_argument("--runs", type=Path, default=PROJECT / "runs")
    parser.add_argument("--overrides", nargs="+", default=[], help="arguments of train.py, last")
    options = parser.parse_args()
    plan = PLANS[options.name]
    seeds = options.seeds or plan.seeds
    variants = plan.chosen(options.variants)
    torch.set_num_threads(1)
    jobs = [
        Job(options.name, variant, seed, options.runs, tuple(options.overrides))
        for seed in seeds
        for variant in variants
    ]
    name = f"ablation-{options.name}"
    records, others = recorded(name, jobs[0])
    own = (record.content_of(name, record.OWN) or {"sources": ()})["sources"]
    if others and not records:
        usual = mode(run["arguments"] for run in others if run["variant"] == others[0]["variant"])
        raise SystemExit(
            f"error: {record.RESULTS / name}.json has {len(others)} runs, all with other "
            f"arguments, such as {usual!r}, and they would leave its table. For a table of your "
            "own, put RESULTS=FOLDER before the command; to go on with theirs, give --overrides "
            "as they have them."
        )
    title = f"Ablation on {options.name}: differences are paired by seed, less is better"
    measurement = Measurement(name, title, device="cpu", seeds=(), tells=False)

    def save() -> None:
        now, others = recorded(name, jobs[0])  # another call may have added to them
        records.update(now | records)
        measurement.about["seeds"] = sorted({seed for _, seed in records})
        seconds = sum(source["seconds"] for source in records.values())
        sources = [*records.values(), *others]
        measurement.save(table(records, plan), sources=sources, seconds=seconds)

    waiting = [job for job in jobs if (job.variant, job.seed) not in records]
    if not waiting:
        save()  # the table may be another one
    print(remaining(waiting, records, len(options.cores), own), flush=True)
    try:
        with catching(), closing(run([*waiting], options.cores)) as finished:
            for job in finished:
                records[job.variant, job.seed] = found = record_of(job, plan)
                save()
                waiting.remove(job)
                print(f"{job.variant}, seed {job.seed}: {found['test']:.4f}")
                print(remaining(waiting, records, len(options.cores), own), flush=True)
    except Stopped as stopped:
        print(f"stopped {stopped}; the same command goes on")
        raise SystemExit(stopped.exit_code) from stopped
    print(markdown(table(records, plan)))
    print(f"written to {measurement.path}")


def recorded(name: str, job: Job) -> tuple[Records, list[dict[str, Any]]]:
    """Return what the file has of runs with the arguments that a call gives them, and the rest.

    Args:
        name: The name of the file.
        job: Any run of the call.
    """
    path = record.RESULTS / f"{name}.json"
    sources = (record.content_of(name) or {"sources": []})["sources"]
    if any("variant" not in source for source in sources):
        raise SystemExit(
            f"error: {path} is of a form before this one, and would be lost. Give it another name."
        )
    records, others = {}, []
    for source in sources:
        variant = source["variant"]
        known = variant in PLANS[job.name].variants
        if known and source["arguments"] == job._replace(variant=variant).arguments:
            records[variant, source["seed"]] = source
        else:
            others.append(source)
    return records, others


def remaining(
    waiting: Sequence[Job], records: Records, cores: int, own: Sequence[dict[str, Any]] = ()
) -> str:
    """Return how many runs are to come, and how long that is by what the others took, or else
    by what the runs of the project's own table did."""
    runs = f"{len(waiting)} of {len(waiting) + len(records)} runs to come"
    sources = [*records.values()] or own
    if not (waiting and sources):
        return runs
    taken: dict[str, list[float]] = {}
    for found in sources:
        taken.setdefault(found["variant"], []).append(found["seconds"])
    # The lower of two: a run that was interrupted may have waited for days.
    usual = median(found["seconds"] for found in sources)  # of a variant without a run
    seconds = sum(median_low(taken.get(job.variant, [usual])) for job in waiting) / cores
    return f"{runs}, some {timedelta(seconds=round(seconds))} on as many cores as now"


def record_of(job: Job, plan: Plan) -> dict[str, Any]:
    """Return a finished run's figures, those without each part of the test set, and its origin."""
    figures = summary(job.folder / "metrics.jsonl")
    figures = {name: figures[name] for name in figures if name.startswith("val_")}
    test, left_out = jackknifed(job.folder, plan.batch)
    figures |= {f"test_{name}": round(figure, 4) for name, figure in test.items()}
    source = source_of(job.folder)
    first = f"val/{next(iter(test))}"
    if first not in source["curves"]:
        raise SystemExit(f"error: {job.folder} was never validated. Leave out what prevents it.")
    source["curves"] = {first: source["curves"][first]}
    return {
        "variant": job.variant,
        "arguments": job.arguments,
        "figures": figures,
        "test": next(iter(test.values())),
        "test_without": [round(figure, 6) for figure in left_out],
        **source,
    }


def run(jobs: Sequence[Job], cores: Sequence[int]) -> Generator[Job]:
    """Run jobs, one a core, and yield each as soon as it is done; a finished run ends at once.

    Where this is closed or stopped, or one has failed, the others save what they have, and end.
    """
    free: SimpleQueue[int] = SimpleQueue()
    begun: list[subprocess.Popen[str]] = []
    over = Event()
    for core in cores:
        free.put(core)

    def train(job: Job) -> Job:
        core = free.get()
        try:
            program = subprocess.Popen(
                job.command,
                cwd=PROJECT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )
            begun.append(program)
            if over.is_set():  # which came as this one began
                program.terminate()
            printed = "".join(program.communicate())
        finally:
            free.put(core)
        if program.returncode:
            raise SystemExit(f"{shlex.join(job.command)}\n{printed}")
        return job

    pool = ThreadPoolExecutor(len(cores))
    try:
        futures = [pool.submit(train, job) for job in jobs]
        yield from (each.result() for each in as_completed(futures))
    finally:
        over.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for program in begun:
            program.terminate()
        pool.shutdown()


def table(records: Records, plan: Plan) -> list[dict[str, Any]]:
    """Return a row for each variant that has runs."""
    rows = []
    for variant in plan.variants:
        mine = {seed: found for (name, seed), found in records.items() if name == variant}
        if not mine:
            continue
        figures = [found["figures"] for found in mine.values()]
        row: dict[str, Any] = {"variant": variant, "runs": len(mine)}
        row |= {name: round(fmean(each[name] for each in figures), 4) for name in figures[0]}
        if len(mine) > 1:
            row |= {"deviation": round(stdev(found["test"] for found in mine.values()), 4)}
        for reference in plan.references:
            pairs = [
                (found, records[reference, seed])
                for seed, found in mine.items()
                if (reference, seed) in records
            ]
            if pairs and variant != reference:
                row[f"against {reference}"] = difference(pairs)
        rows.append(row | {"arguments": next(iter(mine.values()))["arguments"]})
    return rows


def difference(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Return the mean difference of pairs of runs with the same seed, with two standard errors."""
    differences = [mine["test"] - its["test"] for mine, its in pairs]
    parts = zip(
        *([*map(sub, mine["test_without"], its["test_without"])] for mine, its in pairs),
        strict=True,
    )
    left_out = [fmean(each) for each in parts]  # the mean over seeds, without a part
    n, mean = len(left_out), fmean(left_out)
    of_test_set = ((n - 1) / n * sum((x - mean) ** 2 for x in left_out)) ** 0.5
    difference = fmean(differences)
    text = f"{difference:+.3f}"
    if len(pairs) == 1:
        return f"{text} ± {of_test_set:.3f} test set"
    of_seeds = stdev(differences) / len(pairs) ** 0.5
    level = abs(difference) <= 2 * hypot(of_seeds, of_test_set)
    verdict = "level" if level else "ahead" if difference < 0 else "behind"
    return f"{text} ± {of_seeds:.3f} seeds ± {of_test_set:.3f} test set: {verdict}"


def jackknifed(folder: Path, batch: dict[str, Any]) -> tuple[dict[str, float], list[float]]:
    """Return a run's figures on the test set, and its first without each batch in turn."""
    trained = load(Run(folder).best_checkpoint())
    data = trained.data.with_options(**batch)
    with torch.no_grad():
        found = [trained.task.statistics(each) for each in data().loader("test")]
    whole: Statistics = {name: sum(each[name] for each in found) for name in found[0]}  # pyright: ignore
    names = [figure.name for figure in trained.task.figures]

    def figures(sums: Statistics) -> dict[str, float]:
        judged = trained.task.judge(sums)
        return {name: judged[name].item() for name in names}

    parts = ({name: whole[name] - each[name] for name in whole} for each in found)
    return figures(whole), [figures(part)[names[0]] for part in parts]


if __name__ == "__main__":
    main()
