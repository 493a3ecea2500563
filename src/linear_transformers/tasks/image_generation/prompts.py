"""Images as prompts, partly given by a mask; and grids of their completions."""

from pathlib import Path

import numpy as np
import torch

from linear_transformers.data.images import Images, ImageShape
from linear_transformers.data.masks import Mask
from linear_transformers.data.sequences import to_sequences
from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.pictures.grids import save_grid, tiles_of, to_rgb
from linear_transformers.sampling import Prompts, complete_in_batches, stepper_of


def prompts_of(images: Images, mask: Mask, n: int = 1) -> Prompts:
    """Return the prompts to complete each image n times, given the pixels of a mask."""
    known = torch.from_numpy(mask).flatten().repeat_interleave(images.shape[-1])
    return Prompts(to_sequences(images).long(), known, n)


def images_and_mask(prompts: Prompts, shape: ImageShape) -> tuple[Images, Mask]:
    """Return the images and the mask of prompts."""
    mask = shape.to_images(prompts.known)[0, :, :, 0].astype(bool)
    return shape.to_images(prompts.values), mask


def draw_grid(
    model: AutoregressiveTransformer,
    distribution: ValueDistribution,
    prompts: Prompts,
    shape: ImageShape,
    *,
    seed: int,
    path: Path,
) -> None:
    """Complete prompts in one batch, and write a grid of given and completed images."""
    parts = complete_in_batches(
        stepper_of(model), distribution, prompts, batch=prompts.count, seed=seed
    )
    drawn = np.concatenate([shape.to_images(part.values) for part in parts])
    images, mask = images_and_mask(prompts, shape)
    originals = to_rgb(images, shape) if mask.any() else None
    save_grid(tiles_of(to_rgb(drawn, shape), originals, mask, prompts.n), path)
