"""A task and its data as Lightning's modules."""

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from linear_transformers.config.messages import nearest
from linear_transformers.data.base import DataSource, Split
from linear_transformers.runs.checkpoint import RAW, described
from linear_transformers.runs.folder import Run, shown
from linear_transformers.tasks.base import Evaluation, Loss, Statistics, Task
from linear_transformers.training.devices import share_of
from linear_transformers.training.optimizers import RAdam
from linear_transformers.training.schedules import ScheduleFactory

OptimizerFactory = Callable[[Iterator[tuple[str, Parameter]]], Optimizer]


class Training(LightningModule):
    """A task in training.

    Args:
        task: The task, whose model is trained.
        optimizer: Makes the optimizer from the named parameters.
        scheduler: Makes the learning rate's schedule.
        config: The run's configuration as plain data, saved with each checkpoint.
        resume_optimizer: What a run that is resumed does with the optimizer's state: `keep` goes
            on with the moments under its own rate, other options and schedule, `new` without
            them. None restores everything as it was.

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
        resume_optimizer: Literal["keep", "new"] | None = None,
    ):
        super().__init__()
        self.task = task
        self.model = task.model
        self.make_optimizer: OptimizerFactory = lambda given: together(optimizer(given))
        self.make_scheduler = scheduler
        self.config = config
        self.resume_optimizer = resume_optimizer
        self.evaluation = Evaluation({}, {})
        self.sums: Statistics = {}
        self._accumulated = torch.zeros(2)  # total and count of the batches before
        self._before = (0, 0)  # epochs before a run goes on, and their steps
        # Wrong options are refused now rather than after loading.
        scheduler(optimizer(self.model.named_parameters()), 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.task.loss(batch)
        mean, backward = self._of_global_batch(loss, batch_idx)
        for name, value in self.task.progress(mean).items():
            self.log(f"train/{name}", value)
        return backward

    def _of_global_batch(self, loss: Loss, batch_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean over the global batch so far, and what to differentiate for it.

        Gradients are averaged over devices, and Lightning divides by the number of batches that
        are accumulated: neither knows how much each of them counts.
        """
        devices, batches = self.trainer.world_size, self.trainer.accumulate_grad_batches
        if devices == batches == 1:
            return loss.mean.detach(), loss.mean
        sums = torch.stack([loss.total.detach(), loss.count.to(loss.total, non_blocking=True)])
        sums = self.trainer.strategy.reduce(sums, reduce_op="sum")
        if batch_idx % batches:
            before = self._accumulated.to(sums)  # on the CPU where a run goes on between them
            sums = sums + before
            gradients = [p.grad for p in self.parameters() if p.grad is not None]
            for gradient in gradients:
                gradient.mul_(before[1] / sums[1])
        self._accumulated = sums
        return sums[0] / sums[1], loss.total * (devices * batches / sums[1])

    def on_validation_epoch_start(self) -> None:
        self.sums = {}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        for name, value in self.task.statistics(batch).items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self._judge("val")

    def on_test_epoch_end(self) -> None:
        self._judge("test")

    def _judge(self, stage: str) -> None:
        """Log the metrics of the sums over all devices: exact, however batches were divided."""
        reduce = self.trainer.strategy.reduce
        sums = {name: reduce(value, reduce_op="sum") for name, value in self.sums.items()}
        figures = self.task.judge(sums)
        for name, value in figures.items():
            self.log(f"{stage}/{name}", value.float())
        if stage == "val":
            self._check_monitors([f"val/{name}" for name in figures])
        self.evaluation = Evaluation({name: value.item() for name, value in figures.items()}, sums)
        if stage == "val" and not self.trainer.sanity_checking:
            self._step_plateaus({f"{stage}/{name}": value for name, value in figures.items()})

    def _check_monitors(self, known: list[str]) -> None:
        """Refuse to watch what no validation gives, at the first one: mostly before training."""
        for callback in self.trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            metric = getattr(callback, "monitor", None)
            if not isinstance(metric, str) or metric in known:
                continue
            if metric == "" or metric.startswith("val/"):
                raise ValueError(
                    f"monitor={metric} of {type(callback).__name__} is not a metric of "
                    f"validations: {nearest(metric, known)}"
                )

    def _step_plateaus(self, figures: dict[str, torch.Tensor]) -> None:
        known = {**self.trainer.callback_metrics, **figures}
        for schedule in self.trainer.lr_scheduler_configs:
            if not schedule.reduce_on_plateau:
                continue
            if schedule.monitor not in known:
                raise ValueError(
                    f"scheduler.monitor={schedule.monitor} is not a metric of this run: "
                    f"{nearest(str(schedule.monitor), known)}"
                )
            assert isinstance(schedule.scheduler, ReduceLROnPlateau)
            schedule.scheduler.step(known[schedule.monitor].item())

    def not_finite(self, name: str) -> ValueError:
        """Return the error of a run whose numbers are no longer finite.

        Args:
            name: What is not finite.
        """
        trainer, gradients = self.trainer, [p.grad for p in self.parameters() if p.grad is not None]
        last = trainer.logged_metrics.get("train/gradient_norm")
        norm = torch.nn.utils.get_total_norm(gradients) if gradients else last
        kept = Run(Path(trainer.default_root_dir)).checkpoints_to_resume()
        good = shown(kept[0]) if kept else "none yet"
        return ValueError(
            f"{name} is not finite at step {trainer.global_step}, gradient norm "
            f"{'unknown' if norm is None else f'{float(norm):.3g}'}. Last good checkpoint: {good}. "
            "Try a smaller optimizer.lr, or debug=anomaly to see where it arises."
        )

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.model.named_parameters())
        schedule = self.make_scheduler(optimizer, self.num_steps)
        if schedule is None:
            return optimizer
        if not isinstance(schedule, dict):  # torch's own took the steps for an option of theirs
            raise ValueError(
                f"scheduler makes a {type(schedule).__name__}; it has to be a function of the "
                "optimizer and the number of steps, like those of training/schedules.py."
            )
        if "monitor" in schedule:
            schedule["monitor"] = schedule["monitor"] or f"val/{self.task.figure.name}"
            # A plateau's scheduler looks for the least, unless the figure is best at its most.
            best = {figure.name: figure.best for figure in self.task.figures}
            if best.get(schedule["monitor"].partition("/")[2]) == "max":
                schedule["scheduler"].mode, schedule["scheduler"].best = "max", -math.inf
            schedule["frequency"] = sys.maxsize  # `_judge` steps it, before anything is saved
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    @property
    def num_steps(self) -> float:
        """The number of steps of the whole run, infinite without an end. Epochs before it went on
        count as they were: batches, and how many are accumulated, may be others now."""
        trainer, (epochs, taken) = self.trainer, self._before
        steps = trainer.estimated_stepping_batches
        if self._before == (0, 0) or trainer.max_epochs in (None, -1):
            return steps
        of_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        steps = taken + of_epoch * max(trainer.max_epochs - epochs, 0)
        return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.trainer.state.fn != TrainerFn.FITTING:
            return
        loop = checkpoint["loops"]["fit_loop"]
        epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
        within = 0 if batches["is_last_batch"] else batches["current"]["ready"]
        self._before = (
            epochs["current"]["started"] - (not batches["is_last_batch"]),
            checkpoint["global_step"] - within // self.trainer.accumulate_grad_batches,
        )
        if (carried := checkpoint.get("carried")) is not None:
            rank, devices = share_of(self.trainer)
            self.task.carried = [
                x.tensor_split(devices)[rank].clone() if isinstance(x, torch.Tensor) else x
                for x in carried
            ]
        if self.resume_optimizer is None:
            return
        checkpoint["lr_schedulers"] = []
        if self.resume_optimizer == "new":
            checkpoint["optimizer_states"] = []

    def on_train_start(self) -> None:
        if self.resume_optimizer is None:
            return
        (optimizer,) = self.trainer.optimizers
        ours = self.make_optimizer(self.model.named_parameters())
        for group, wanted in zip(optimizer.param_groups, ours.param_groups, strict=True):
            given = {name: value for name, value in wanted.items() if name != "params"}
            group.update(given | {"initial_lr": wanted["lr"]})
        for schedule in self.trainer.lr_scheduler_configs:
            if schedule.interval != "step":
                continue
            with warnings.catch_warnings():  # of steps that the optimizer did not take
                warnings.simplefilter("ignore")
                for _ in range(self.trainer.global_step):
                    schedule.scheduler.step()  # pyright: ignore[reportCallIssue]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Complete a checkpoint.

        Raises:
            ValueError: Something in it is not finite. Nothing is written then.
        """
        for part in ("state_dict", RAW):
            state = checkpoint.get(part, {})  # with buffers, which may be infinite: masks are
            for name, _ in self.named_parameters():
                if not all_finite(state.get(name)):
                    raise self.not_finite(name)
        if not all_finite(checkpoint.get("optimizer_states")):
            raise self.not_finite("the optimizer's state")
        if (carried := self.task.carried) is not None:
            checkpoint["carried"] = [self._of_all_devices(x) for x in carried]
        checkpoint |= described(self.config, self.task.shape)

    def _of_all_devices(self, part: Any) -> Any:
        """Return what all devices carry from batch to batch, one after the other."""
        if self.trainer.world_size == 1 or not isinstance(part, torch.Tensor):
            return part
        return self.trainer.strategy.all_gather(part).flatten(0, 1)


def together(optimizer: Optimizer) -> Optimizer:
    """Let an optimizer change all parameters by one call, or else by one call an operation, if
    nobody said otherwise.

    torch does the latter by itself on GPUs only. On a CPU it takes a half to a quarter of the time,
    the former a sixth of that.

    Args:
        optimizer: The optimizer, before its first step. It may be changed.

    Returns:
        The optimizer to use.
    """
    if type(optimizer) is torch.optim.RAdam:
        optimizer = RAdam(optimizer.param_groups)
    for group in optimizer.param_groups:
        said = any(group.get(way) is not None for way in ("fused", "foreach"))
        if said or group.get("differentiable"):  # which has neither
            continue
        if "fused" in group and all(parameter.is_cpu for parameter in group["params"]):
            group["fused"] = True
        elif "foreach" in group:
            group["foreach"] = True
    return optimizer


def all_finite(node: Any) -> bool:
    """Return whether all numbers in the tensors of nested data are finite."""
    if isinstance(node, torch.Tensor):
        return not node.is_floating_point() or bool(node.isfinite().all())
    parts = node.values() if isinstance(node, dict) else node
    return not isinstance(node, dict | list | tuple) or all(map(all_finite, parts))


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
        rank, world_size = share_of(self.trainer)
        return self.source.loader(split, rank=rank, world_size=world_size)
