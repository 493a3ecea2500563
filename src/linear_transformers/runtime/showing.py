"""What the model makes, shown at each validation: images out of nothing, and completed ones."""

from pathlib import Path

import numpy as np
from lightning import Callback, LightningModule, Trainer

from linear_transformers.data import ImageDataModule, ImageShape
from linear_transformers.data.masks import mask_of
from linear_transformers.runtime.pictures import save_grid, tiles_of, to_rgb
from linear_transformers.runtime.prompts import images_and_mask, prompts_of
from linear_transformers.runtime.runs import Run, claim_folder
from linear_transformers.runtime.tracking import Tracker
from linear_transformers.sampling import Prompts, complete_in_batches, stepper_of
from linear_transformers.tasks import ImageGeneration


class Samples(Callback):
    """Draws from a fixed seed at validations, so that pictures of different steps compare.

    Each goes to the run's samples/validation/ and to every tracker. With averaged weights
    (callbacks=ema) it is the average that draws.

    Args:
        run: Whose pictures these are.
        n: Images generated and images completed; 0 draws none.
        every_n_validations: At the first of so many.
        seed: Of all drawing.

    Raises:
        ValueError: A negative number.
    """

    def __init__(self, run: Run, *, n: int = 8, every_n_validations: int = 1, seed: int = 0):
        if n < 0 or every_n_validations < 1 or seed < 0:
            raise ValueError(
                f"callbacks.samples: n={n} and seed={seed} must be 0 or above, "
                f"every_n_validations={every_n_validations} at least 1."
            )
        self.run = run
        self.n = n
        self.every_n_validations = every_n_validations
        self.seed = seed
        self.validations = 0
        self.folder: Path | None = None

    # Before an average of the weights gives way to the current ones: that is at the same
    # event, in a callback that comes later.
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        due = self.validations % self.every_n_validations == 0 and self.n > 0
        self.validations += 1
        if (
            not due
            or not isinstance(pl_module, ImageGeneration)
            or trainer.sanity_checking
            or not trainer.is_global_zero
        ):
            return
        if self.folder is None:  # a continued run has one of its first part
            self.folder = claim_folder(self.run.samples / "validation", numbered=True)
        data: ImageDataModule = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        given = data.splits.val[: self.n]
        for name, prompts in (
            ("generated", Prompts.nothing(data.shape.length, self.n)),
            ("completed", prompts_of(given, mask_of("bottom", data.shape))),
        ):
            grid = self.folder / f"{trainer.global_step:07d}-{name}.png"
            draw_grid(pl_module, prompts, data.shape, seed=self.seed, path=grid)
            for tracker in trackers_of(trainer):
                tracker.log_picture(f"samples/{name}", grid, trainer.global_step)


def trackers_of(trainer: Trainer) -> list[Tracker]:
    """The trainer's loggers, which are all ours."""
    return [logger for logger in trainer.loggers if isinstance(logger, Tracker)]


def draw_grid(
    task: ImageGeneration, prompts: Prompts, shape: ImageShape, *, seed: int, path: Path
) -> None:
    """Complete some images all at once, and write a grid of what was given and made."""
    parts = complete_in_batches(
        stepper_of(task.model), task.distribution, prompts, batch=prompts.count, seed=seed
    )
    drawn = np.concatenate([shape.to_images(part.values) for part in parts])
    images, mask = images_and_mask(prompts, shape)
    originals = to_rgb(images, shape) if mask.any() else None
    save_grid(tiles_of(to_rgb(drawn, shape), originals, mask, prompts.n), path)
