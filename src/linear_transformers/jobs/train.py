"""The job behind train.py: train, test, show what the model makes, say how it went."""

import inspect
import logging
import os
import shlex
import signal
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning import Callback, Trainer, seed_everything
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.optim import Optimizer

from linear_transformers.callbacks import EpochPlace, StepSeed, StopAtSignal
from linear_transformers.config.choices import Choice, allowing, checked, plain
from linear_transformers.config.composition import without
from linear_transformers.config.messages import first_line, out_of_memory, override
from linear_transformers.config.ranges import Seed
from linear_transformers.data.base import DataSource
from linear_transformers.files import mend_lines
from linear_transformers.jobs.continuing import (
    as_saved,
    check_agreement,
    checkpoint_to_resume,
    initialise,
    is_finished,
    tested_checkpoint,
)
from linear_transformers.jobs.requeue import requeue
from linear_transformers.provenance import call_again, call_of, provenance, write_provenance
from linear_transformers.runs.checkpoint import Found, read_checkpoint
from linear_transformers.runs.folder import (
    AUTO,
    Run,
    claim_run,
    close_run,
    find_checkpoint,
    open_run,
    shown,
)
from linear_transformers.runs.sweeps import Outcome
from linear_transformers.stopping import Stopped, deferred
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

# What a run that is continued has to agree with its checkpoint in.
CONTINUED = ("model", "task", "optimizer", "scheduler")
TESTED = ("model", "task")


@dataclass(kw_only=True)
class Paths:
    """Where things lie."""

    data: str
    runs: str


@dataclass(kw_only=True)
class SweepOptions:
    """What a multirun does; the command line has looked at it before any job begins."""

    skip_done: bool


@dataclass(kw_only=True)
class TrainJob:
    """The options of train.py: conf/train.yaml says what each of them is."""

    seed: Seed
    tags: list[str]
    group: str | None
    run_id: str | None
    resume: str | None
    resume_optimizer: Literal["keep", "new"] | None
    init_from: str | None
    train: bool
    test: bool
    compile: bool
    sweep: SweepOptions
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


def run(program: str, config: dict[str, Any], hidden: Mapping[str, str]) -> Outcome:
    """Check a composed configuration, and run the job.

    Args:
        program: The program's name.
        config: The options, as composed.
        hidden: What stands in records for environment variables: see `from_environment`.

    Raises:
        ValueError: See `checked` and `train`.
    """
    if config["train"] is False and config["resume"] is not None:
        runs = Path(config["paths"]["runs"])
        config = as_saved(config, HydraConfig.get().overrides.task, runs)
    return train(TrainJob(**checked(TrainJob, config, "")), hidden)


def train(job: TrainJob, hidden: Mapping[str, str]) -> Outcome:
    """Run one job.

    Everything that can be refused is refused before the run's folder is made.

    Args:
        job: The job.
        hidden: See `run`.

    Raises:
        ValueError: The configuration asks for something that cannot be.
    """
    _quiet()
    _check(job)
    torch.set_float32_matmul_precision(job.matmul_precision)
    seed_everything(job.seed, workers=True, verbose=False)
    runs, data = Path(job.paths.runs), job.data()
    task = build_task(job.task, job.model, data.shape)
    found = checkpoint_to_resume(job.resume, job.run_id, runs) if job.train else _tested(job)
    if found is not None:
        choices = {name: getattr(job, name) for name in (CONTINUED if job.train else TESTED)}
        check_agreement(
            found, shape=data.shape, choices=choices, task=task, optimizer=job.resume_optimizer
        )
    hydra, rank = HydraConfig.get(), rank_zero_only.rank  # pyright: ignore
    run = claim_run(
        runs,
        run_id=job.run_id,
        label=f"{hydra.runtime.choices['data']}-{hydra.runtime.choices['model']}",
        resume=job.resume if job.train else None,
        rank=rank,
    )
    if job.group is None:
        sweep = Path(hydra.sweep.dir).name if hydra.mode == RunMode.MULTIRUN else None
        job.group = sweep or run.path.name
    trainer = None
    try:
        config = without(plain(vars(job)), hidden)
        module = Training(
            task,
            optimizer=job.optimizer,
            scheduler=job.scheduler,
            config=config,
            resume_optimizer=job.resume_optimizer,
        )
        origin = provenance()
        trackers = trackers_for(job.logger, _description(job, config, origin, run, task))
        trainer = _build_trainer(job, run, task, trackers)
        if hydra.mode == RunMode.MULTIRUN and trainer.world_size > 1:
            raise ValueError("A multirun (-m) trains on one device: use trainer.devices=1.")
        task.kernel_on(trainer.strategy.root_device)  # refuses what cannot run there
        if job.optimizer.options.get("capturable") and trainer.strategy.root_device.type == "cpu":
            raise ValueError("optimizer.capturable=true is for GPUs: leave it out on a CPU.")
        if job.train and found and is_finished(run, found, trainer, task, test=job.test):
            return _finished(run, found, task, trainer.is_global_zero)
        if trainer.is_global_zero:
            data.fetch()
            data.check(trainer.world_size)
        notes = [f"note     {line}" for line in task.prepare(data)]
        notes += _start(job, found, task)
        open_run(run, config, rank=rank)
        with started(trackers if trainer.is_global_zero else ()) as lines:
            if trainer.is_global_zero:
                write_provenance(run.path, origin)
                if mend_lines(run.metrics):
                    notes.append(f"note     the torn last line of {run.metrics.name} was removed")
                Record(run.metrics).begin(task.figures)
                _announce(run, data, task, trainer, [*lines, *notes])
            return _run(job, run, module, Loaders(data), trainer, found)
    except MisconfigurationException as error:
        raise ValueError(f"Trainer: {first_line(error)}.") from error
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise ValueError(_too_large(job, task, error)) from error
    except Stopped as stopped:
        stopped.lines += _where_it_goes_on(job, run, stopped)
        raise
    finally:
        # Its processes would wait for this one for ever.
        if trainer is not None and (launcher := trainer.strategy.launcher) is not None:
            launcher.kill(signal.SIGTERM)
        close_run(run, rank=rank)


def _run(
    job: TrainJob,
    run: Run,
    module: Training,
    loaders: Loaders,
    trainer: Trainer,
    found: Found | None,
) -> Outcome:
    task, first = module.task, trainer.is_global_zero
    if job.compile:
        task.model.compile()
    if job.train:
        with deferred():
            trainer.fit(module, loaders, ckpt_path=str(found.path) if found else None)
    if job.train and first:
        for tracker in trackers_of(trainer):
            tracker.log_checkpoints(run.best_checkpoint(), run.last_checkpoint)
    if not job.test:
        return _outcome(None, run, task, first)
    tested = run.best_checkpoint() if job.train or not found else found.path
    module.load_state_dict(read_checkpoint(tested)["state_dict"])
    figures = trainer.test(module, loaders, verbose=False)[0]
    if first:
        task.model.eval()
        output = Output(run.samples / "test", trackers_of(trainer), step=trainer.global_step)
        where = task.report(loaders.source, module.evaluation, output)
        print("", f"run      {shown(run.path)}", *where, sep="\n")
        _suggest(task, output, shown(run.path if job.train else tested))
    return _outcome(figures[f"test/{task.figure.name}"], run, task, first)


def _too_large(job: TrainJob, task: Task, error: BaseException) -> str:
    """Return what to change where memory does not suffice."""
    batch = [f"data.{k}={v}" for k, v in job.data.options.items() if k.startswith("batch_")]
    return (
        f"Out of memory with {', '.join(batch) or 'this batch'}, {task.shape.description}, "
        f"{task.description} ({first_line(error)}). Make the batch smaller "
        "(trainer.accumulate_grad_batches makes up for it), the model smaller, or use "
        "model.activation_checkpointing=true or trainer.precision=bf16-mixed."
    )


def _suggest(task: Task, output: Output, checkpoint: Path) -> None:
    """Print what to call next, if any program uses such a model."""
    if call := task.next_call(output):
        program, *words = call
        words = shlex.join([override("ckpt", checkpoint), *words, *allowing()])
        print(f"next     {call_of(program)} {words}")


def _tested(job: TrainJob) -> Found:
    """Return the checkpoint that is tested without training."""
    assert job.resume is not None  # _check asked for one
    path = tested_checkpoint(job.resume, job.run_id, Path(job.paths.runs))
    return Found(path, read_checkpoint(path), [])


def _start(job: TrainJob, found: Found | None, task: Task) -> list[str]:
    """Return lines on what the run starts from; a model is given the weights that it is to have."""
    if found is None:
        if job.init_from is None:
            return []
        return [initialise(task, find_checkpoint(job.init_from, Path(job.paths.runs)))]
    lines = [f"caution  {line}" for line in found.passed_over]
    if job.train:
        step = found.checkpoint["global_step"]
        lines.append(f"resume   {shown(found.path)}, step {step}")
    return lines


def _finished(run: Run, found: Found, task: Task, first: bool) -> Outcome:
    """Say that nothing is left to do."""
    figures = summary(run.metrics)
    figure = figures.get(f"test_{task.figure.name}")
    if first:
        said = "" if figure is None else f", test {figure} {task.figure.unit}"
        print(f"finished {shown(run.path)}: step {found.checkpoint['global_step']}{said}")
        _suggest(task, Output(run.samples / "test"), shown(run.path))
    return _outcome(figure, run, task, first)


def _where_it_goes_on(job: TrainJob, run: Run, stopped: Stopped) -> list[str]:
    """Return what a run that was stopped has kept, and how it goes on."""
    if not job.train or HydraConfig.get().mode == RunMode.MULTIRUN:
        return []  # the table of a multirun has the commands of its jobs
    kept = run.last_checkpoint
    lines = [f"kept     {shown(kept)}" if kept.is_file() else "kept     nothing yet"]
    again = override("run_id", run.path.name), override("resume", AUTO)
    lines.append(f"next     {call_again('train', *again)}")
    if requeued := requeue(stopped, continues=job.resume == AUTO and job.run_id is not None):
        lines.append(requeued)
    return lines


def _outcome(figure: float | None, run: Run, task: Task, first: bool) -> Outcome:
    figures = {"run": run.path.name, **summary(run.metrics)} if first else {}
    if figure is not None and task.figure.best == "max":
        figure = -figure  # sweepers minimise
    return Outcome(figure, figures)


def _build_trainer(job: TrainJob, run: Run, task: Task, trackers: Sequence[Tracker]) -> Trainer:
    """Return Lightning's trainer with this run's files, callbacks and loggers."""
    about = {"run": run, "task": task}
    callbacks: list[Callback] = [StepSeed(job.seed), EpochPlace(), StopAtSignal(run)]
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
    environment = getattr(trainer.strategy, "cluster_environment", None)
    alone = isinstance(environment, LightningEnvironment)
    if trainer.num_nodes > 1 and alone and "MASTER_ADDR" not in os.environ:
        raise ValueError(
            f"trainer.num_nodes={trainer.num_nodes} needs a process on each node: start it by srun "
            "or torchrun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK on each."
        )
    # Ours stay: Lightning's requeue by themselves, and wait for other devices inside of a handler.
    trainer._signal_connector.register_signal_handlers = lambda: None
    if "profiler" in job.trainer.options:  # Lightning would log its report, which is silenced
        profiler: Any = trainer.profiler  # pyright: ignore
        profiler.dirpath, profiler.filename = run.path, "profile"
    return trainer


def _check(job: TrainJob) -> None:
    if job.test and not job.train and job.resume is None:
        raise ValueError("train=false test=true tests a checkpoint: give resume=RUN_OR_FILE.")
    if job.test and job.trainer.options.get("limit_test_batches") == 0:
        raise ValueError("trainer.limit_test_batches=0 leaves nothing to test: use test=false.")
    if job.trainer.options.get("overfit_batches"):
        raise ValueError(
            "trainer.overfit_batches would replace the data's own batches: use debug=overfit."
        )
    if not job.train and not job.test:
        raise ValueError("train=false test=false leaves nothing to do.")
    if job.init_from is not None and (job.resume not in (None, AUTO) or not job.train):
        raise ValueError(
            "init_from starts a run from the weights of another, resume goes on with a run. Give "
            "one of them; or resume=auto, which looks at init_from when the run begins."
        )
    if job.resume_optimizer is not None and job.resume is None:
        raise ValueError(f"resume_optimizer={job.resume_optimizer} is for a run that is resumed.")


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
        ".*`srun` command is available.*",  # as on every login node
        ".*isinstance.treespec, LeafSpec.*",  # Lightning 2.6 on torch 2.14, which renamed it
    ):
        warnings.filterwarnings("ignore", message=message)
