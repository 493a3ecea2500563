"""What all image data sets share: the splits in memory, and loaders over them."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from linear_transformers.data.batches import EpochBatches, EvaluationBatches

Images = UInt8[np.ndarray, "_ height width channels"]


class ImageShape(NamedTuple):
    """The size of every image of a data set, and how many levels a sub-pixel has."""

    height: int
    width: int
    channels: int
    num_levels: int

    @property
    def length(self) -> int:
        """Values in the sequence that an image is."""
        return self.height * self.width * self.channels

    def to_images(self, values: Tensor) -> Images:
        """Sequences of values [n, length] back into images."""
        shape = (-1, self.height, self.width, self.channels)
        return values.cpu().numpy().astype(np.uint8).reshape(shape)


class ImageSplits(NamedTuple):
    """Images by use. Values run from 0 to `ImageShape.num_levels` - 1."""

    train: Images
    val: Images
    test: Images


class ImageDataModule(LightningDataModule, ABC):
    """Images as sequences of values, all in memory: uint8 is small.

    Args:
        batch_size: Images a batch, on each device.
        seed: The order of training images is a function of it and of the epoch, so that a
            resumed run sees what it would have seen.
        num_train: Train on the first so many images only; None is all of them.
    """

    def __init__(self, batch_size: int, seed: int = 0, num_train: int | None = None):
        super().__init__()
        if num_train is not None and num_train < 1:
            raise ValueError(f"num_train={num_train} was asked for; it must be at least 1.")
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} was asked for; it must be at least 1.")
        self.batch_size = batch_size
        self.seed = seed
        self.num_train = num_train
        self._splits: ImageSplits | None = None

    @property
    @abstractmethod
    def shape(self) -> ImageShape:
        """Known before the images are loaded, so that a model can be built first."""

    @abstractmethod
    def load(self) -> ImageSplits:
        """Read the images.

        Raises:
            ValueError: They are not there or not as expected.
        """

    @property
    def splits(self) -> ImageSplits:
        """The images, read at the first use."""
        if self._splits is None:
            splits = self.load()
            self._splits = splits._replace(train=splits.train[: self.num_train])
        return self._splits

    def check_sizes(self, world_size: int) -> None:
        """Read the images, and see that there are enough of them for every device.

        Raises:
            ValueError: There are not, or the images cannot be read.
        """
        count = len(self.splits.train)
        if count < self.batch_size * world_size:
            raise ValueError(
                f"{count} training images do not fill one batch of {self.batch_size} on each "
                f"of {world_size} devices. Use data.batch_size={count // world_size} or less."
            )
        fewest = min(len(self.splits.val), len(self.splits.test))
        if fewest < world_size:
            raise ValueError(
                f"{fewest} images to validate or test on are fewer than {world_size} devices."
            )

    def train_dataloader(self) -> DataLoader:
        rank, world_size = self._world()
        batches = EpochBatches(
            len(self.splits.train), self.batch_size, self.seed, rank=rank, world_size=world_size
        )
        return self._loader(self.splits.train, batches)

    def val_dataloader(self) -> DataLoader:
        return self._evaluation_loader(self.splits.val)

    def test_dataloader(self) -> DataLoader:
        return self._evaluation_loader(self.splits.test)

    def _evaluation_loader(self, images: Images) -> DataLoader:
        rank, world_size = self._world()
        batches = EvaluationBatches(len(images), self.batch_size, rank=rank, world_size=world_size)
        return self._loader(images, batches)

    def _loader(self, images: Images, batches: EpochBatches | EvaluationBatches) -> DataLoader:
        # batch_size=None: the sampler's items are whole lists of indices. No worker processes:
        # indexing memory needs none, and they would start on an epoch before it is set.
        return DataLoader(
            to_sequences(images),  # pyright: ignore[reportArgumentType]
            batch_size=None,
            sampler=batches,
            pin_memory=torch.cuda.is_available(),
        )

    def _world(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)


def to_sequences(images: Images) -> UInt8[Tensor, "_ t"]:
    """Row by row, a pixel's channels next to each other."""
    return torch.from_numpy(images.reshape(len(images), -1))


def split_off(images: Images, count: int, *, seed: int) -> tuple[Images, Images]:
    """Set `count` images aside, chosen by a permutation that depends on the seed only.

    Raises:
        ValueError: There are not more than `count` images.
    """
    if not 0 < count < len(images):
        raise ValueError(
            f"{count} validation images were asked for out of {len(images)} training images. "
            f"Choose between 1 and {len(images) - 1}."
        )
    order = np.random.default_rng(seed).permutation(len(images))
    return images[np.sort(order[count:])], images[np.sort(order[:count])]
