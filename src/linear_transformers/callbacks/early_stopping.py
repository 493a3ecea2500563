"""The end of a run that no longer improves."""

from lightning.pytorch.callbacks import EarlyStopping

from linear_transformers.tasks.base import Task


class StopEarly(EarlyStopping):
    """Ends training when the task's figure has not improved for some validations.

    Args:
        task: The task, whose figure decides.
        patience: The number of validations without an improvement.
        min_delta: The least change that is an improvement, in the figure's unit.
    """

    def __init__(self, task: Task, *, patience: int = 5, min_delta: float = 0.0):
        figure = task.figure
        super().__init__(
            f"val/{figure.name}", mode=figure.best, patience=patience, min_delta=min_delta
        )
