"""MNIST and CIFAR-10, read and if necessary downloaded by torchvision."""

from pathlib import Path
from typing import Any

import numpy as np

from linear_transformers.config.messages import first_line
from linear_transformers.config.ranges import Count, Size, check_choice, ranged
from linear_transformers.data.images import (
    Images,
    ImageShape,
    ImageSource,
    shrunk,
    split_off,
)
from linear_transformers.data.sequences import Splits

# By the name of torchvision's class: the images' shape, and the folder of their files.
SHAPES = {"MNIST": ImageShape(28, 28, 1, 256), "CIFAR10": ImageShape(32, 32, 3, 256)}
FOLDERS = {"MNIST": "MNIST/raw", "CIFAR10": "cifar-10-batches-py"}


class TorchvisionImages(ImageSource):
    """One of torchvision's data sets; nothing is downloaded where the files already are.

    Args:
        dataset: `MNIST` or `CIFAR10`.
        root: The folder that holds torchvision's folder of files.
        val_size: The number of training images held out for validation; the choice is fixed.
        size: The side in pixels, a divisor of the original's: a pixel is the mean of a block.
            None keeps the images as they are.
        batch_size: See `SequenceSource`.
        options: See `SequenceSource`.

    Raises:
        ValueError: An unknown data set, or a size that does not divide its images'.
    """

    @ranged
    def __init__(
        self,
        dataset: str,
        root: str,
        *,
        val_size: Count,
        size: Size | None = None,
        batch_size: Count,
        **options: Any,
    ):
        super().__init__(batch_size, **options)
        check_choice("data.dataset", dataset, SHAPES)
        self.dataset = dataset
        self._shape = SHAPES[dataset].resized(size)
        self.root = Path(root)
        self.val_size = val_size

    @property
    def shape(self) -> ImageShape:
        return self._shape

    def fetch(self) -> None:
        self._read(train=True)

    def load(self) -> Splits:
        train, val = split_off(self._read(train=True), self.val_size)
        return Splits(train, val, self._read(train=False))

    def _read(self, *, train: bool) -> Images:
        from torchvision import datasets  # late: it takes longer than torch's own import

        folder = self.root / FOLDERS[self.dataset]
        try:
            data = getattr(datasets, self.dataset)(self.root, train=train, download=True).data
        except (OSError, RuntimeError, ValueError, AssertionError, EOFError) as error:
            # URLError is an OSError; torchvision asserts what a damaged file should hold.
            raise ValueError(
                f"{self.dataset} could not be read from {folder}, nor downloaded "
                f"({first_line(error)}). Put its original files there, or give the folder that "
                f"holds {FOLDERS[self.dataset].split('/')[0]}/ as data.root=DIR "
                "(for sample.py: data_root=DIR)."
            ) from error
        original = SHAPES[self.dataset]
        images = np.asarray(data).reshape(len(data), original.height, original.width, -1)
        return shrunk(images, self.shape)
