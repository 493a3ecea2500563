"""Image data sets: images as sequences of values."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from linear_transformers.data.sequences import SequenceShape, SequenceSource

Images = UInt8[np.ndarray, "_ height width channels"]


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

    def to_images(self, values: Tensor) -> Images:
        """Return sequences of values [n, length] as images."""
        shape = (-1, self.height, self.width, self.channels)
        return values.cpu().numpy().astype(np.uint8).reshape(shape)


class ImageSource(SequenceSource):
    """Images as sequences of values: row by row, r g b r g b ..."""

    noun: ClassVar[str] = "images"

    @property
    @abstractmethod
    def shape(self) -> ImageShape: ...


def split_off(images: Images, count: int, *, seed: int) -> tuple[Images, Images]:
    """Return the remaining images, and `count` that a seeded permutation holds out.

    Raises:
        ValueError: One of the two parts would be empty.
    """
    if not 0 < count < len(images):
        raise ValueError(
            f"data.val_size={count} was asked for; there are {len(images)} training images. "
            f"Choose between 1 and {len(images) - 1}."
        )
    order = np.random.default_rng(seed).permutation(len(images))
    return images[np.sort(order[count:])], images[np.sort(order[:count])]
