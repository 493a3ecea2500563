"""The end of a run that no longer improves."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping

from linear_transformers.config.messages import counted
from linear_transformers.config.ranges import Count, NotNegative, ranged
from linear_transformers.tasks.base import Task


class StopEarly(EarlyStopping):
    """Ends training when the task's figure has not improved for some validations.

    Args:
        task: The task, whose figure decides.
        patience: The number of validations without an improvement.
        min_delta: The least change that is an improvement, in the figure's unit.
    """

    @ranged
    def __init__(self, task: Task, *, patience: Count = 5, min_delta: NotNegative = 0.0):
        figure = task.figure
        super().__init__(
            f"val/{figure.name}",
            mode=figure.best,
            patience=patience,
            min_delta=min_delta,
            check_on_train_epoch_end=False,  # but at once: whoever stops then knows of it
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what was counted; the patience is this run's."""
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say that this is why training ended."""
        super().on_train_end(trainer, pl_module)
        if trainer.is_global_zero and self.wait_count >= self.patience:
            validations = counted(self.patience, "validation")
            print(f"ended    {self.monitor} was {self.best_score:.4g}, no better in {validations}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a run at once that had ended before it was resumed."""
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience
