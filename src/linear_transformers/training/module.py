"""A task and its data as Lightning's modules."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from linear_transformers.data.base import DataSource, Split
from linear_transformers.runs.checkpoint import described
from linear_transformers.tasks.base import Evaluation, Statistics, Task
from linear_transformers.training.schedules import ScheduleFactory

OptimizerFactory = Callable[[Iterator[Parameter]], Optimizer]


class Training(LightningModule):
    """A task in training.

    Args:
        task: The task, whose model is trained.
        optimizer: Makes the optimizer from the parameters.
        scheduler: Makes the learning rate's schedule.
        config: The run's configuration as plain data, saved with each checkpoint.

    Raises:
        ValueError: The optimizer or the scheduler refuses its options.
    """

    def __init__(
        self,
        task: Task,
        *,
        optimizer: OptimizerFactory,
        scheduler: ScheduleFactory,
        config: dict[str, Any],
    ):
        super().__init__()
        self.task = task
        self.model = task.model
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler
        self.config = config
        self.evaluation = Evaluation({}, {})
        self._sums: Statistics = {}
        # Wrong options are refused now rather than after loading.
        scheduler(optimizer(self.model.parameters()), 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss, figures = self.task.loss(batch)
        for name, value in figures.items():
            self.log(f"train/{name}", value)
        return loss

    def on_validation_epoch_start(self) -> None:
        self._sums = {}

    def on_test_epoch_start(self) -> None:
        self._sums = {}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._add(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._add(batch)

    def on_validation_epoch_end(self) -> None:
        self._judge("val")

    def on_test_epoch_end(self) -> None:
        self._judge("test")

    def _add(self, batch: Any) -> None:
        for name, value in self.task.statistics(batch).items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _judge(self, stage: str) -> None:
        """Log the metrics of the sums over all devices: exact, however batches were divided."""
        reduce = self.trainer.strategy.reduce
        sums = {name: reduce(value, reduce_op="sum") for name, value in self._sums.items()}
        figures = self.task.judge(sums)
        for name, value in figures.items():
            self.log(f"{stage}/{name}", value.float())
        self.evaluation = Evaluation({name: value.item() for name, value in figures.items()}, sums)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.model.parameters())
        schedule = self.make_scheduler(optimizer, self.trainer.estimated_stepping_batches)
        if schedule is None:
            return optimizer
        if "monitor" in schedule:
            schedule["monitor"] = schedule["monitor"] or f"val/{self.task.figure.name}"
            # A plateau's scheduler looks for the least, unless the figure is best at its most.
            best = {figure.name: figure.best for figure in self.task.figures}
            if best.get(schedule["monitor"].partition("/")[2]) == "max":
                schedule["scheduler"].mode, schedule["scheduler"].best = "max", -math.inf
            # Between validations there is nothing new to judge by.
            schedule["frequency"] = self.trainer.check_val_every_n_epoch or 1
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint |= described(self.config, self.task.shape)


class Loaders(LightningDataModule):
    """A data source as a LightningDataModule.

    Args:
        source: The data source.
    """

    def __init__(self, source: DataSource):
        super().__init__()
        self.source = source

    def train_dataloader(self) -> DataLoader:
        return self._loader("train")

    def val_dataloader(self) -> DataLoader:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._loader("test")

    def _loader(self, split: Split) -> DataLoader:
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        return self.source.loader(split, rank=rank, world_size=world_size)
