"""Image data sets: images as sequences of values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from linear_transformers.data.base import place_of
from linear_transformers.data.rows import Rows, SomeRows, some
from linear_transformers.data.sequences import SequenceShape, SequenceSource

Images = UInt8[np.ndarray, "_ height width channels"]
Held = TypeVar("Held", bound=np.ndarray | Rows)


@dataclass(frozen=True)
class ImageShape(SequenceShape):
    """The size of a data set's images, and the number of levels of a sub-pixel."""

    height: int
    width: int
    channels: int
    num_levels: int

    @property
    def length(self) -> int:
        """The number of sub-pixels of an image."""
        return self.height * self.width * self.channels

    @property
    def axes(self) -> tuple[int, ...]:
        return self.height, self.width, self.channels

    @property
    def num_values(self) -> int:
        return self.num_levels

    @property
    def description(self) -> str:
        return (
            f"{self.height} x {self.width} x {self.channels}, {self.num_levels} levels: "
            f"sequences of {self.length}"
        )

    def resized(self, size: int | None) -> "ImageShape":
        """Return the shape of images of `size` rows, each pixel the mean of a square block.

        None is the shape as it is.

        Raises:
            ValueError: No number of whole blocks makes `size` rows.
        """
        if size is None:
            return self
        height, width = self.height, self.width
        sizes = [n for n in range(1, height + 1) if height % n == 0 == width % (height // n)]
        if size not in sizes:
            raise ValueError(
                f"data.size={size} was asked for; the images are {height} x {width}. "
                f"Choose one of {sizes}."
            )
        return replace(self, height=size, width=width * size // height)

    def to_images(self, values: Tensor) -> Images:
        """Return sequences of values [n, length] as images."""
        return values.cpu().numpy().astype(np.uint8).reshape(-1, *self.axes)


class ImageSource(SequenceSource):
    """Images as sequences of values: row by row, r g b r g b ..."""

    noun: ClassVar[str] = "images"
    num_levels: int

    @property
    def shape(self) -> ImageShape:
        return ImageShape(*self.splits.train.shape[1:], num_levels=self.num_levels)


def resized(images: Images | Rows, shape: ImageShape) -> np.ndarray | Rows:
    """Return images in the size of `shape`; stored ones are read later."""
    if isinstance(images, Rows):
        every = np.arange(len(images))
        return SomeRows(images, every, partial(shrunk, shape=shape), shape.axes)
    return shrunk(images, shape)


def shrunk(
    images: Images, shape: ImageShape
) -> UInt8[np.ndarray, "_ {shape.height} {shape.width} channels"]:
    """Return the images in the size of `shape`, each pixel the mean of a block of pixels."""
    count, height, width, channels = images.shape
    block = height // shape.height
    if block == 1:
        return images
    blocks = images.reshape(count, height // block, block, width // block, block, channels)
    sums = blocks.sum(axis=(2, 4), dtype=np.uint32)
    return ((sums + block * block // 2) // (block * block)).astype(np.uint8)


def split_off(
    images: Held,
    count: int | None,
    *,
    key: str = "val_size",
    names: Sequence[str] | None = None,
) -> tuple[Held, Held]:
    """Return the remaining images, and `count` that are held out at random, always the same.

    Args:
        images: The images, or where they are.
        count: The number of images to hold out; None is a tenth, at most 1,000.
        key: The option of the data that says how many.
        names: The images' names, by whose hashes they are held out: a new image then changes
            the place of one other at most. None is by a permutation.

    Raises:
        ValueError: One of the two parts would be empty.
    """
    if count is None:
        count = min(1000, max(1, len(images) // 10))
    if len(images) < 2:
        raise ValueError(
            f"data.{key}: no image can be held out of {len(images)}. Give at least three: to train "
            "on, to validate and to test."
        )
    if not 0 < count < len(images):
        raise ValueError(
            f"data.{key}={count} was asked for; there are {len(images)} training images. "
            f"Choose between 1 and {len(images) - 1}."
        )
    if names is None:
        order = np.random.default_rng(0).permutation(len(images))
    else:
        order = np.argsort([place_of(name) for name in names])
    return some(images, np.sort(order[count:])), some(images, np.sort(order[:count]))
