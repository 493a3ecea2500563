"""A progress bar for the whole run; without a terminal, one line per validation."""

import time
from datetime import timedelta
from typing import Any

from lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from linear_transformers.training.module import Training


class Progress(Callback):
    """Epoch, steps, the latest figures of training and validation, and the time left."""

    def __init__(self) -> None:
        self.console = Console()
        self.bar: Bar | None = None
        self.start = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start = time.monotonic()
        if not (trainer.is_global_zero and self.console.is_terminal):
            return
        self.bar = Bar(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task(
            "train", total=_total_steps(trainer), epoch=trainer.current_epoch, figures=""
        )
        self.bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.bar is None:
            return
        self.bar.update(self.task, completed=trainer.global_step, epoch=trainer.current_epoch)
        # Reading a figure waits for the device: not at every step.
        if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:  # pyright: ignore
            self.bar.update(self.task, figures=_figures(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.bar is not None or not trainer.is_global_zero or trainer.sanity_checking:
            return
        seconds = round(time.monotonic() - self.start)
        print(
            f"epoch {trainer.current_epoch}  step {trainer.global_step}/{_total_steps(trainer)}  "
            f"{_figures(trainer)}  {timedelta(seconds=seconds)}",
            flush=True,
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _total_steps(trainer: Trainer) -> float:
    return trainer.estimated_stepping_batches


def _figures(trainer: Trainer) -> str:
    """Return the latest figures that were logged: `train 2.31  val 2.20  bits/dim`."""
    module = trainer.lightning_module
    assert isinstance(module, Training)
    figure = module.task.figure
    shown = [
        f"{stage} {trainer.callback_metrics[f'{stage}/{figure.name}']:.3f}"
        for stage in ("train", "val")
        if f"{stage}/{figure.name}" in trainer.callback_metrics
    ]
    return "  ".join([*shown, figure.unit]) if shown else ""
