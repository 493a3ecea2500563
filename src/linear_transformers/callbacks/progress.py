"""A progress bar for the whole run; without a terminal, lines."""

import math
import time
from datetime import timedelta
from typing import Any

from lightning import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from linear_transformers.config.ranges import Seconds, ranged
from linear_transformers.training.module import Training


class Progress(Callback):
    """Epoch, steps, the latest figures of training and validation, and the time left.

    Without a terminal: a line at each validation and at the end, and in between where a validation
    does not come for long.

    Args:
        every_seconds: The longest time without a line, in seconds.
    """

    @ranged
    def __init__(self, *, every_seconds: Seconds = 30.0) -> None:
        self.every_seconds = every_seconds
        self.console = Console()
        self.printed = (0.0, -1)  # when, and at which step
        self.bar: Bar | None = None
        self.start, self.first = 0.0, 0  # when, and at which step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start, self.first = time.monotonic(), trainer.global_step
        self.printed = (self.start, self.first)
        if not (trainer.is_global_zero and self.console.is_terminal):
            return
        steps = _training(trainer).num_steps
        total = steps if steps < math.inf else None
        self.bar = Bar(
            TextColumn("{task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[step]}"),
            TextColumn("{task.fields[figures]}"),
            *(() if total is None else (TimeRemainingColumn(), TextColumn("left"))),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task("train", total=total, figures="", **_place(trainer))
        self.bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.bar is None:
            if time.monotonic() - self.printed[0] > self.every_seconds:
                self._line(trainer)
            return
        self.bar.update(self.task, completed=trainer.global_step, **_place(trainer))
        # Reading a figure waits for the device: not at every step.
        if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:  # pyright: ignore
            self.bar.update(self.task, figures=_figures(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._line(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()
        if self.printed[1] != trainer.global_step:
            self._line(trainer, over=True)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    def _line(self, trainer: Trainer, *, over: bool = False) -> None:
        if self.console.is_terminal or not trainer.is_global_zero:
            return
        now, total = time.monotonic(), _training(trainer).num_steps
        self.printed = (now, trainer.global_step)
        passed, done = now - self.start, trainer.global_step - self.first
        parts = [*_place(trainer, over=over).values(), _figures(trainer), _clock(passed)]
        if done and trainer.global_step < total < math.inf:
            parts[-1] += f", {_clock(passed * (total - trainer.global_step) / done)} left"
        print("  ".join(parts), flush=True)

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _training(trainer: Trainer) -> Training:
    assert isinstance(trainer.lightning_module, Training)
    return trainer.lightning_module


def _place(trainer: Trainer, *, over: bool = False) -> dict[str, Any]:
    """Return how far a run is; some have no end."""
    total = _training(trainer).num_steps
    of = f"/{total}" if total < math.inf else ""
    epoch = f"epoch {trainer.current_epoch - over}"  # at the end Lightning has counted one more
    return {"epoch": epoch, "step": f"step {trainer.global_step}{of}"}


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _figures(trainer: Trainer) -> str:
    """Return the latest figures that were logged: `train 2.31  val 2.20  bits/dim`."""
    figure = _training(trainer).task.figure
    shown = [
        f"{stage} {trainer.callback_metrics[f'{stage}/{figure.name}']:.3f}"
        for stage in ("train", "val")
        if f"{stage}/{figure.name}" in trainer.callback_metrics
    ]
    return "  ".join([*shown, figure.unit]) if shown else ""
