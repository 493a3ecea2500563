"""Samples of the model, shown at validations."""

from typing import Annotated, Any

from annotated_types import Ge, Le
from lightning import Callback, LightningModule, Trainer

from linear_transformers.config.ranges import Count, Seed, ranged
from linear_transformers.runs.folder import Run
from linear_transformers.stopping import Stopped
from linear_transformers.tasks.base import Output, Task
from linear_transformers.tracking import trackers_of
from linear_transformers.training.module import Training, all_finite


class Samples(Callback):
    """Draws from a fixed seed at validations, so that pictures of different steps compare.

    Each goes to the run's samples/validation/ and to every tracker. With callbacks=ema,
    the averaged weights draw.

    Args:
        run: The run's folder.
        task: The task, which draws the samples.
        n: The number of examples of each kind; 0 draws none.
        every_n_validations: The number of validations from one drawing to the next.
        seed: The seed of all draws.

    Raises:
        ValueError: A negative number.
    """

    @ranged
    def __init__(
        self,
        run: Run,
        task: Task,
        *,
        n: Annotated[int, Ge(0), Le(10_000)] = 8,
        every_n_validations: Count = 1,
        seed: Seed = 0,
    ):
        self.task = task
        self.n = n
        self.every_n_validations = every_n_validations
        self.seed = seed
        self.validations = 0
        self.output = Output(run.samples / "validation")

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self.validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations = state_dict["validations"]

    # At this event a later callback swaps averaged weights back for the current ones.
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        due = self.validations % self.every_n_validations == 0 and self.n > 0
        self.validations += 1
        if not due or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, Training)
        if not all_finite(pl_module.sums):
            return  # nothing can be drawn, and Performance is about to say why
        self.output.watchers = trackers_of(trainer)
        self.output.step = trainer.global_step
        self.output.prefix = f"{trainer.global_step:07d}-"
        source = trainer.datamodule.source  # pyright: ignore[reportAttributeAccessIssue]
        try:
            self.task.show(source, self.output, n=self.n, seed=self.seed)
        except Stopped:
            return  # without pictures: StopAtSignal ends the run where all devices can
