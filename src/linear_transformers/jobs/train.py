"""The job behind train.py: train, test, show what the model makes, say how it went."""

import inspect
import logging
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning import Callback, Trainer, seed_everything
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_only
from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from linear_transformers.callbacks import EpochPlace, StepSeed
from linear_transformers.config.choices import Choice, allowing, checked, checked_choice, plain
from linear_transformers.config.messages import first_line
from linear_transformers.data.base import DataSource
from linear_transformers.provenance import call_of, provenance, write_provenance
from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.runs.folder import (
    Run,
    claim_run,
    close_run,
    find_checkpoint,
    open_run,
    shown,
)
from linear_transformers.runs.sweeps import Outcome
from linear_transformers.tasks.base import Output, Task
from linear_transformers.tasks.loading import build_task
from linear_transformers.tracking import (
    Description,
    Record,
    Tracker,
    started,
    trackers_for,
    trackers_of,
)
from linear_transformers.tracking.record import summary
from linear_transformers.training.files import WholeCheckpoints
from linear_transformers.training.module import Loaders, Training


@dataclass(kw_only=True)
class Paths:
    """Where things lie."""

    data: str
    runs: str


@dataclass(kw_only=True)
class TrainJob:
    """The options of train.py: conf/train.yaml says what each of them is."""

    seed: Annotated[int, Field(ge=0)]
    tags: list[str]
    group: str | None
    run_id: str | None
    ckpt_path: str | None
    train: bool
    test: bool
    compile: bool
    matmul_precision: Literal["highest", "high", "medium"]
    paths: Paths
    proposed: dict[str, Any]
    model: Choice[nn.Module]
    data: Choice[DataSource]
    task: Choice[Task]
    optimizer: Choice[Optimizer]
    scheduler: Choice[Any]
    trainer: Choice[Trainer]
    callbacks: dict[str, Choice[Callback]]
    logger: dict[str, Choice[Tracker]]


def run(program: str, config: Mapping[str, Any]) -> Outcome:
    """Check a composed configuration, and run the job.

    Raises:
        ValueError: See `checked` and `train`.
    """
    return train(TrainJob(**checked(TrainJob, config, "")))


def train(job: TrainJob) -> Outcome:
    """Run one job.

    Everything that can be refused is refused before the run's folder is made.

    Raises:
        ValueError: The configuration asks for something that cannot be.
    """
    _quiet()
    _check(job)
    torch.set_float32_matmul_precision(job.matmul_precision)
    seed_everything(job.seed, workers=True, verbose=False)
    data = job.data()
    task = build_task(job.task, job.model, data.shape)
    resume = None if job.ckpt_path is None else _resumable(job, data, task)
    hydra, rank = HydraConfig.get(), rank_zero_only.rank  # pyright: ignore
    run = claim_run(
        Path(job.paths.runs),
        run_id=job.run_id,
        label=f"{hydra.runtime.choices['data']}-{hydra.runtime.choices['model']}",
        continues=job.ckpt_path,
        rank=rank,
    )
    if job.group is None:
        sweep = Path(hydra.sweep.dir).name if hydra.mode == RunMode.MULTIRUN else None
        job.group = sweep or run.path.name
    try:
        config = plain(vars(job))
        module = Training(task, optimizer=job.optimizer, scheduler=job.scheduler, config=config)
        origin = provenance()
        trackers = trackers_for(job.logger, _description(job, config, origin, run, task))
        trainer = _build_trainer(job, run, task, trackers)
        if hydra.mode == RunMode.MULTIRUN and trainer.world_size > 1:
            raise ValueError("A multirun (-m) trains on one device: use trainer.devices=1.")
        task.kernel_on(trainer.strategy.root_device)  # refuses what cannot run there
        if trainer.is_global_zero:
            data.fetch()
            data.check(trainer.world_size)
        notes = [f"note     {line}" for line in task.prepare(data)]
        open_run(run, config, rank=rank)
        with started(trackers if trainer.is_global_zero else ()) as lines:
            if trainer.is_global_zero:
                write_provenance(run.path, origin)
                Record(run.metrics).begin(task.figures)
                _announce(run, data, task, trainer, [*lines, *notes])
            return _run(job, run, module, Loaders(data), trainer, resume)
    except MisconfigurationException as error:
        raise ValueError(f"Trainer: {first_line(error)}.") from error
    finally:
        close_run(run, rank=rank)


def _run(
    job: TrainJob,
    run: Run,
    module: Training,
    loaders: Loaders,
    trainer: Trainer,
    resume: Path | None,
) -> Outcome:
    task, first = module.task, trainer.is_global_zero
    if job.compile:
        task.model.compile()
    if job.train:
        _fit(trainer, run, module, loaders, resume)
    if job.train and first:
        for tracker in trackers_of(trainer):
            tracker.log_checkpoints(run.best_checkpoint(), run.last_checkpoint)
    if not job.test:
        return _outcome(None, run, task, first)
    tested = run.best_checkpoint() if job.train else resume
    assert tested is not None  # _check asked for one
    module.load_state_dict(read_checkpoint(tested)["state_dict"])
    figures = trainer.test(module, loaders, verbose=False)[0]
    if first:
        task.model.eval()
        output = Output(run.samples / "test", trackers_of(trainer), step=trainer.global_step)
        where = task.report(loaders.source, module.evaluation, output)
        print("", f"run      {shown(run.path)}", *where, sep="\n")
        name = shown(run.path if job.train else tested)
        if call := task.next_call(output):
            program, *words = call
            words = shlex.join([f"ckpt={name}", *words, *allowing()])
            print(f"next     {call_of(program)} {words}")
    return _outcome(figures[f"test/{task.figure.name}"], run, task, first)


def _outcome(figure: float | None, run: Run, task: Task, first: bool) -> Outcome:
    figures = {"run": run.path.name, **summary(run.metrics)} if first else {}
    if figure is not None and task.figure.best == "max":
        figure = -figure  # sweepers minimise
    return Outcome(figure, figures)


def _fit(
    trainer: Trainer, run: Run, module: Training, loaders: Loaders, resume: Path | None
) -> None:
    """Train. A run that is stopped from outside says how it goes on, and exits as stopped."""
    try:
        trainer.fit(module, loaders, ckpt_path=str(resume) if resume else None)
    except SystemExit:  # Lightning's end for Ctrl-C, and for SIGTERM with code 0
        if trainer.is_global_zero:
            name = run.path.name
            print(f"stopped at step {trainer.global_step}", file=sys.stderr)
            print(f"next     the same command with run_id={name} ckpt_path={name}", file=sys.stderr)
        sys.exit(143 if trainer.received_sigterm else 130)


def _build_trainer(job: TrainJob, run: Run, task: Task, trackers: Sequence[Tracker]) -> Trainer:
    """Return Lightning's trainer with this run's files, callbacks and loggers."""
    about = {"run": run, "task": task}
    callbacks: list[Callback] = [StepSeed(job.seed), EpochPlace(run)]
    for callback in job.callbacks.values():
        wanted = inspect.signature(callback.target).parameters
        callbacks.append(callback(**{name: about[name] for name in about if name in wanted}))
    trainer = job.trainer(
        callbacks=callbacks,
        logger=[Record(run.metrics), *trackers],
        plugins=[WholeCheckpoints()],
        default_root_dir=str(run.path),
        use_distributed_sampler=False,  # the data source's batches know their device
        enable_progress_bar=False,  # Progress is the bar
        enable_model_summary=False,
    )
    if "profiler" in job.trainer.options:  # Lightning would log its report, which is silenced
        profiler: Any = trainer.profiler  # pyright: ignore
        profiler.dirpath, profiler.filename = run.path, "profile"
    return trainer


def _check(job: TrainJob) -> None:
    if job.test and not job.train and job.ckpt_path is None:
        raise ValueError("train=false test=true tests a checkpoint: give ckpt_path=RUN_OR_FILE.")
    if job.test and job.trainer.options.get("limit_test_batches") == 0:
        raise ValueError("trainer.limit_test_batches=0 leaves nothing to test: use test=false.")


def _resumable(job: TrainJob, data: DataSource, task: Task) -> Path:
    """Return the checkpoint to continue from, once it is known to be of the same task and model."""
    assert job.ckpt_path is not None
    runs = Path(job.paths.runs)
    path = Path(job.ckpt_path)
    last = Run(path if path.is_dir() else runs / path).last_checkpoint
    path = last if job.train and last.is_file() else find_checkpoint(job.ckpt_path, runs)
    saved = read_checkpoint(path)
    if saved["shape"] != (shape := vars(data.shape)):
        raise ValueError(
            f"The checkpoint {path} was made for data of {saved['shape']}, these are {shape}. "
            "Give it the same data."
        )
    for part, choice, kind in (("model", job.model, nn.Module), ("task", job.task, Task)):
        # Checked like a new one, so that options it did not know have their defaults.
        before = checked_choice(saved["config"].get(part), part, kind)
        theirs, ours = (_flat(c.without_free_options().plain(), part) for c in (before, choice))
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                raise ValueError(
                    f"The checkpoint {path} was made with {name}={theirs.get(name)}, this run "
                    f"has {name}={ours.get(name)}. Give it the same."
                )
    shapes = {name: value.shape for name, value in saved["state_dict"].items()}
    if shapes != {f"model.{name}": x.shape for name, x in task.model.state_dict().items()}:
        raise ValueError(f"The weights in {path} do not fit the model that its config describes.")
    return path


def _flat(node: Any, path: str) -> dict[str, Any]:
    """Return nested keys as dotted ones."""
    if not isinstance(node, dict):
        return {path: node}
    return {k: v for key in node for k, v in _flat(node[key], f"{path}.{key}").items()}


def _announce(
    run: Run, data: DataSource, task: Task, trainer: Trainer, watch: Sequence[str]
) -> None:
    device = trainer.strategy.root_device
    parameters = sum(p.numel() for p in task.model.parameters())
    lines = [
        f"data     {data.shape.description}",
        f"model    {task.description}, {parameters / 1e6:.2f} M parameters, "
        f"kernel: {task.kernel_on(device)}",
        f"device   {trainer.world_size} x {device.type}, "
        f"{torch.get_num_threads()} threads, precision {trainer.precision}",
        f"run      {shown(run.path)}",
        *watch,
        *(f"caution  {line}" for line in task.cautions()),
    ]
    print("\n".join(lines), flush=True)


def _description(
    job: TrainJob, config: dict[str, Any], origin: dict[str, Any], run: Run, task: Task
) -> Description:
    assert job.group is not None
    return Description(
        folder=run.path,
        runs=Path(job.paths.runs),
        name=run.path.name,
        job_type="train",
        group=job.group,
        tags=tuple(job.tags),
        figures=task.figures,
        config={**config, "provenance": origin},
    )


def _quiet() -> None:
    """Silence the advice of Lightning's that does not apply here."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",  # batches are slices of memory
        ".*exists and is not empty.*",  # a run that is continued, which open_run has checked
        ".*your dataloader is not resumable.*",  # EpochPlace makes it so
        ".*The dirpath has changed.*",  # a new run that starts from another's checkpoint
        ".*smaller than the logging interval.*",  # Record writes at each validation in any case
        ".*isinstance.treespec, LeafSpec.*",  # Lightning 2.6 on torch 2.14, which renamed it
    ):
        warnings.filterwarnings("ignore", message=message)
