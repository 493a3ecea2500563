"""The options of train.py."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from torch import nn
from torch.optim import Optimizer, SparseAdam

from linear_transformers.callbacks import BestCheckpoint, LastCheckpoint, StopEarly
from linear_transformers.config.choices import Choice
from linear_transformers.config.ranges import Seed
from linear_transformers.data.base import DataSource
from linear_transformers.runs.folder import AUTO
from linear_transformers.runs.sweeps import Sweep
from linear_transformers.tasks.base import Task
from linear_transformers.tracking import Tracker
from linear_transformers.training.schedules import on_plateau


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

    @property
    def multirun(self) -> Sweep | None:
        """The multirun that the job is one of."""
        about = HydraConfig.get()
        if about.mode != RunMode.MULTIRUN:
            return None
        return Sweep(Path(about.sweep.dir), Path(self.paths.runs))

    def has(self, *kinds: type[Callback]) -> bool:
        """Return whether a callback of one of some kinds is chosen."""
        classes = (x.target for x in self.callbacks.values())
        return any(isinstance(x, type) and issubclass(x, kinds) for x in classes)


def check(job: TrainJob) -> None:
    """Refuse options that contradict each other.

    Args:
        job: The job.

    Raises:
        ValueError: They do.
    """
    options = job.trainer.options
    if job.test and not job.train and job.resume is None:
        raise ValueError("train=false test=true tests a checkpoint: give resume=RUN_OR_FILE.")
    if job.test and job.train and not job.has(BestCheckpoint, LastCheckpoint):
        raise ValueError(
            "test=true tests a checkpoint of the run, and none would be kept: use callbacks.best, "
            "callbacks.last, or test=false."
        )
    if job.test and options.get("limit_test_batches") == 0:
        raise ValueError("trainer.limit_test_batches=0 leaves nothing to test: use test=false.")
    if job.has(StochasticWeightAveraging):
        raise ValueError(
            "StochasticWeightAveraging puts its average into the model after the last checkpoint, "
            "so nothing would use it: use callbacks=ema, or Lightning's WeightAveraging."
        )
    if job.has(LearningRateFinder, BatchSizeFinder):
        raise ValueError(
            "LearningRateFinder and BatchSizeFinder change a run before it begins: search by a "
            "multirun, optimizer.lr=1e-3,3e-3."
        )
    if options.get("fast_dev_run"):
        raise ValueError("trainer.fast_dev_run would keep no checkpoint: use debug=step.")
    if any(word in str(options.get("strategy")) for word in ("spawn", "fork", "notebook")):
        raise ValueError(
            f"trainer.strategy={options['strategy']} starts processes that cannot be given this "
            "run: use ddp."
        )
    for name in ("max_epochs", "max_steps", "limit_train_batches"):
        if job.train and options.get(name) == 0:
            raise ValueError(f"trainer.{name}=0 trains nothing. Leave it out.")
    for unit in ("epochs", "steps"):
        least, most = (options.get(f"{end}_{unit}") for end in ("min", "max"))
        if (least or 0) > (most or math.inf) > 0:
            raise ValueError(f"trainer.min_{unit}={least} is above trainer.max_{unit}={most}.")
    watches = job.scheduler.target is on_plateau or job.has(StopEarly)
    if options.get("limit_val_batches") == 0 and watches:
        raise ValueError(
            "trainer.limit_val_batches=0 leaves no validation for scheduler=on_plateau or "
            "callbacks=early_stopping to go by."
        )
    if options.get("overfit_batches"):
        raise ValueError(
            "trainer.overfit_batches would replace the data's own batches: use debug=overfit, of "
            "images and other sequences."
        )
    if job.optimizer.target is SparseAdam:
        raise ValueError("SparseAdam takes sparse gradients, and these are dense: optimizer=adam.")
    if not job.train and not job.test:
        raise ValueError("train=false test=false leaves nothing to do.")
    if job.init_from is not None and (job.resume not in (None, AUTO) or not job.train):
        raise ValueError(
            "init_from starts a run from the weights of another, resume goes on with a run. Give "
            "one of them; or resume=auto, which looks at init_from when the run begins."
        )
    if job.resume_optimizer is not None and job.resume is None:
        raise ValueError(f"resume_optimizer={job.resume_optimizer} is for a run that is resumed.")
