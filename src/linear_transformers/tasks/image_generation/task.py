"""Autoregressive modelling of images, value by value: Katharopoulos et al. (2020), section 4.2."""

import math
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from torch import Tensor

from linear_transformers.data.baselines import baselines
from linear_transformers.data.images import ImageShape, ImageSource
from linear_transformers.data.masks import mask_of
from linear_transformers.pictures.grids import save_grid, tiles_of, to_rgb
from linear_transformers.pictures.tables import print_table
from linear_transformers.runs.folder import shown
from linear_transformers.sampling import Prompts, complete_in_batches, stepper_of
from linear_transformers.tasks.base import (
    Evaluation,
    Figure,
    Loss,
    Output,
    Statistics,
    count,
    total,
)
from linear_transformers.tasks.costs import report_costs
from linear_transformers.tasks.image_generation.exporting import ExportImages
from linear_transformers.tasks.image_generation.model import ImageModel
from linear_transformers.tasks.image_generation.prompts import images_and_mask, prompts_of
from linear_transformers.tasks.image_generation.sampling import SampleImages
from linear_transformers.tasks.sequences import Sequences, SequenceTask

NUM_COMPLETED = 8  # test images in a finished run's grid


class ImageGeneration(SequenceTask):
    """Autoregressive modelling of pixel intensities, row by row.

    The loss is in nats per dimension (a sub-pixel: one channel of one pixel), over all
    dimensions, the first included; reported as bits per dimension, nats / ln 2.

    Args:
        shape: See `SequenceTask`.
        model: See `SequenceTask`.
        distribution: See `SequenceTask`.
    """

    shape_class = ImageShape
    uses: ClassVar = {"sample": SampleImages, "export": ExportImages}
    trained_class = ImageModel
    figures = (Figure("bits_per_dim", "bits/dim"),)
    shape: ImageShape

    def loss(self, batch: Sequences) -> Loss:
        nats = self._nats(batch)
        return Loss(nats.sum(), count(nats))

    def progress(self, mean: Tensor) -> dict[str, Tensor]:
        return {"bits_per_dim": mean / math.log(2)}

    def statistics(self, batch: Sequences) -> Statistics:
        nats = self._nats(batch)
        return {"nats": total(nats), "values": count(nats)}

    def judge(self, statistics: Statistics) -> dict[str, Tensor]:
        bits = statistics["nats"] / math.log(2) / statistics["values"]
        return {"bits_per_dim": bits}

    def show(self, data: ImageSource, output: Output, *, n: int, seed: int) -> None:
        for name, prompts in (
            ("generated", Prompts.nothing(self.shape.length, n)),
            ("completed", prompts_of(data.splits.val[:n], mask_of("bottom", self.shape))),
        ):
            self._draw(prompts, output, f"{name}.png", f"samples/{name}", seed)

    def report(self, data: ImageSource, evaluation: Evaluation, output: Output) -> list[str]:
        mask = mask_of("bottom", self.shape)
        prompts = prompts_of(data.splits.test[:NUM_COMPLETED], mask)
        grid = self._draw(prompts, output, "grid.png", "samples/test", seed=0)
        tables = baselines(data.splits, self.shape.num_levels)
        output.summary({f"baseline/{name}": value for name, value in tables._asdict().items()})
        figure = evaluation.figures["bits_per_dim"]
        name = self.model.stack.mixer_name
        if figure > min(tables):
            name += ", which counting beats: train longer, or at another optimizer.lr"
        print_table(
            "test bits/dim",
            ("this model", f"{figure:.3f}", name),
            ("histogram", f"{tables.histogram:.3f}", "each position on its own"),
            ("neighbours", f"{tables.neighbours:.3f}", "given the left and upper pixel"),
        )
        report_costs(self, data.noun, output)
        return [f"samples  {shown(grid)}"]

    def _draw(self, prompts: Prompts, output: Output, file: str, name: str, seed: int) -> Path:
        """Complete prompts in one batch, and show a grid of given and completed images."""
        grid, shape, batch = output.file(file), self.shape, prompts.count
        stepper = stepper_of(self.model)
        parts = complete_in_batches(stepper, self.distribution, prompts, batch=batch, seed=seed)
        drawn = np.concatenate([shape.to_images(part.values) for part in parts])
        images, mask = images_and_mask(prompts, shape)
        originals = to_rgb(images, shape) if mask.any() else None
        save_grid(tiles_of(to_rgb(drawn, shape), originals, mask, prompts.n), grid)
        output.picture(name, grid)
        return grid

    def _nats(self, batch: Sequences) -> Float[Tensor, "b t"]:
        parameters, values = self.predict(batch)
        return -self.distribution.log_prob(parameters, values)
