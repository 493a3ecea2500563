"""Random features drawn anew while a model trains."""

from typing import Any

from lightning import Callback, LightningModule, Trainer

from linear_transformers.config.ranges import Count, ranged
from linear_transformers.feature_maps import RandomFeatures


class RedrawFeatures(Callback):
    """Redraws the directions of random features every few steps, in training only.

    A model then cannot rely on particular directions; the last ones are saved with it
    (Choromanski et al., 2021, section 4.2).

    Args:
        every_n_steps: The number of optimizer steps between two draws.

    Raises:
        ValueError: Fewer than one step, or a model that has no random features.
    """

    @ranged
    def __init__(self, *, every_n_steps: Count = 1000):
        self.every_n_steps = every_n_steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.step = trainer.global_step
        if not _maps(pl_module):
            raise ValueError(
                "callbacks=redraw was asked for, but the model has no random features."
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # With accumulated gradients most batches are no step.
        if trainer.global_step > self.step and trainer.global_step % self.every_n_steps == 0:
            for phi in _maps(pl_module):
                phi.redraw()
        self.step = trainer.global_step


def _maps(module: LightningModule) -> list[RandomFeatures]:
    return [phi for phi in module.modules() if isinstance(phi, RandomFeatures)]
