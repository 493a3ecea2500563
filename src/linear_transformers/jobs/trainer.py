"""Lightning's trainer, as a run needs it."""

import inspect
import logging
import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from subprocess import TimeoutExpired
from typing import Any

import torch
from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from linear_transformers.callbacks import EpochPlace, Epochs, StepSeed, StopAtSignal
from linear_transformers.config.choices import Choice
from linear_transformers.jobs.options import TrainJob
from linear_transformers.ops.pieces import Place
from linear_transformers.ops.precision import faster_in_bfloat16
from linear_transformers.runs.folder import Run
from linear_transformers.tasks.base import Task
from linear_transformers.tasks.loading import usable
from linear_transformers.tracking import Record, Tracker
from linear_transformers.training.devices import SequenceParallel
from linear_transformers.training.files import WholeCheckpoints

AUTO, GPUS = "auto", ("gpu", "cuda")
FLOAT16 = ("16-mixed", "16", 16)  # that scales its gradients
GRACE = 10  # seconds in which the other processes may end by themselves


def with_precision(trainer: Choice[Trainer]) -> Choice[Trainer]:
    """Return a trainer whose `precision=auto` is decided: what ran is recorded.

    Args:
        trainer: The trainer's choice. Its device is a GPU where it may be one and there is one.
    """
    options = trainer.options
    if options.get("precision") != AUTO:
        return trainer
    on_gpu = options.get("accelerator", AUTO) in (AUTO, *GPUS) and torch.cuda.is_available()
    low = faster_in_bfloat16(torch.device("cuda" if on_gpu else "cpu"))
    return trainer.with_options(precision="bf16-mixed" if low else "32-true")


def build_trainer(job: TrainJob, run: Run, task: Task, trackers: Sequence[Tracker]) -> Trainer:
    """Return Lightning's trainer with a run's files, callbacks and loggers.

    Args:
        job: The job.
        run: The run's folder.
        task: The job's task.
        trackers: The loggers besides the run's own record.

    Raises:
        ValueError: A GPU, or what only GPUs have, is asked for, and there is none; or several
            nodes, and only one process was started.
        MisconfigurationException: Lightning refuses an option.
    """
    accelerator, precision = (job.trainer.options.get(n) for n in ("accelerator", "precision"))
    on_cpu = accelerator == "cpu" or not torch.accelerator.is_available()
    if accelerator in GPUS and on_cpu:
        raise ValueError(
            f"trainer.accelerator={accelerator}: PyTorch sees no GPU here. Use trainer=cpu."
        )
    if precision in FLOAT16 and on_cpu:  # Lightning would take bf16-mixed, against the record
        raise ValueError(
            f"trainer.precision={precision} needs a GPU, and this run is on a CPU. Use "
            "trainer.precision=bf16-mixed."
        )
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
    trainer.fit_loop = Epochs.of(trainer)
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


def check_device(job: TrainJob, task: Task, trainer: Trainer) -> None:
    """Refuse what cannot run on the trainer's devices.

    Args:
        job: The job.
        task: The job's task.
        trainer: The trainer.

    Raises:
        ValueError: A kernel, an option, a model or a multirun cannot.
    """
    device = trainer.strategy.root_device
    if job.multirun is not None and trainer.world_size > 1:
        raise ValueError("A multirun (-m) trains on one device: use trainer.devices=1.")
    task.kernel_on(device)
    if isinstance(trainer.strategy, SequenceParallel):
        task.cut(Place(trainer.global_rank, trainer.world_size))
    for name, callback in job.callbacks.items():
        if (other := callback.options.get("device")) is not None:
            usable(str(other), f"callbacks.{name}.device")
    if job.optimizer.options.get("capturable") and device.type == "cpu":
        raise ValueError("optimizer.capturable=true is for GPUs: leave it out on a CPU.")


@contextmanager
def ending_together(trainer: Trainer) -> Iterator[None]:
    """End the processes that a trainer started if this one fails: they would wait for it for ever.

    Args:
        trainer: The trainer.
    """
    try:
        yield
    except BaseException:
        launcher = trainer.strategy.launcher
        if isinstance(launcher, _SubprocessScriptLauncher):
            launcher.kill(signal.SIGTERM)
            others = [*launcher.procs]
            launcher.procs.clear()  # Lightning, which watches these, would kill this process too
            for process in others:
                try:
                    process.wait(GRACE)
                except TimeoutExpired:
                    process.kill()
        raise


def quiet() -> None:
    """Silence the advice of Lightning's that does not apply here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",  # batches are slices of memory
        ".*exists and is not empty.*",  # a run that is continued, which open_run has checked
        ".*your dataloader is not resumable.*",  # EpochPlace makes it so
        ".*callbacks used to create the checkpoint.*",  # one may be left out; not averages
        ".*The dirpath has changed.*",  # a new run that starts from another's checkpoint
        ".*`self.log.*sync_dist=True.*",  # Training sums over devices by itself
        ".*smaller than the logging interval.*",  # Record writes at each validation in any case
        ".*`srun` command is available.*",  # as on every login node
        ".*TensorFloat32 tensor cores.*",  # matmul_precision is the user's
        ".*isinstance.treespec, LeafSpec.*",  # Lightning 2.6 on torch 2.14, which renamed it
    ):
        warnings.filterwarnings("ignore", message=message)
