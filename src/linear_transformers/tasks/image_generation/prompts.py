"""Images as prompts, partly given by a mask."""

import torch

from linear_transformers.data.images import Images, ImageShape
from linear_transformers.data.masks import Mask
from linear_transformers.data.sequences import to_sequences
from linear_transformers.sampling import Prompts


def prompts_of(images: Images, mask: Mask, n: int = 1) -> Prompts:
    """Return the prompts to complete each image n times, given the pixels of a mask."""
    known = torch.from_numpy(mask).flatten().repeat_interleave(images.shape[-1])
    return Prompts(to_sequences(images).long(), known, n)


def images_and_mask(prompts: Prompts, shape: ImageShape) -> tuple[Images, Mask]:
    """Return the images and the mask of prompts."""
    mask = shape.to_images(prompts.known)[0, :, :, 0].astype(bool)
    return shape.to_images(prompts.values), mask
