"""Random features drawn anew while a model trains."""

from typing import Any

from lightning import Callback, LightningModule, Trainer

from linear_transformers.config.ranges import Count, ranged
from linear_transformers.feature_maps import RandomFeatures
from linear_transformers.tasks.base import Task


class RedrawFeatures(Callback):
    """Redraws the directions of random features every few steps, in training only.

    A model then cannot rely on particular directions; the last ones are saved with it
    (Choromanski et al., 2021, section 4.2).

    Args:
        task: The task, whose model has them.
        every_n_steps: The number of optimizer steps between two draws.

    Raises:
        ValueError: Fewer than one step, or a model that has no random features.
    """

    @ranged
    def __init__(self, task: Task, *, every_n_steps: Count = 1000):
        self.maps = [phi for phi in task.model.modules() if isinstance(phi, RandomFeatures)]
        self.every_n_steps = every_n_steps
        if not self.maps:
            raise ValueError(
                "callbacks=redraw was asked for, but the model has no random features: see "
                "model/feature_map=favor, fourier."
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # With accumulated gradients most batches are no step.
        if trainer.global_step > self.step and trainer.global_step % self.every_n_steps == 0:
            for phi in self.maps:
                phi.redraw()
        self.step = trainer.global_step
