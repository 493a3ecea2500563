"""What all data sets share: sequences of small integers, in memory, and loaders over them."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from linear_transformers.data.batches import EpochBatches, EvaluationBatches

Items = UInt8[np.ndarray, "_ ..."]


@runtime_checkable
class SequenceShape(Protocol):
    """What a model must know of its data; a NamedTuple of integers, saved with its weights."""

    @property
    def length(self) -> int:
        """Values in the longest sequence."""
        ...

    @property
    def num_values(self) -> int:
        """Values run from 0 to `num_values` - 1."""
        ...

    @property
    def description(self) -> str:
        """For the run's log."""
        ...

    def _asdict(self) -> dict[str, int]: ...


class Splits(NamedTuple):
    """Items by use, each of one size: images, or sequences as they are."""

    train: Items
    val: Items
    test: Items


class SequenceDataModule(LightningDataModule, ABC):
    """Sequences of values, all in memory: uint8 is small.

    Args:
        batch_size: Sequences a batch, on each device.
        seed: The order of training data is a function of it and of the epoch, so that a
            resumed run sees what it would have seen.
        num_train: Train on the first so many only; None is all of them.
    """

    noun: ClassVar[str] = "sequences"

    def __init__(self, batch_size: int, seed: int = 0, num_train: int | None = None):
        super().__init__()
        if num_train is not None and num_train < 1:
            raise ValueError(f"num_train={num_train} was asked for; it must be at least 1.")
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} was asked for; it must be at least 1.")
        self.batch_size = batch_size
        self.seed = seed
        self.num_train = num_train
        self._splits: Splits | None = None

    @property
    @abstractmethod
    def shape(self) -> SequenceShape:
        """Known before the data are loaded, so that a model can be built first."""

    @abstractmethod
    def load(self) -> Splits:
        """Read the data.

        Raises:
            ValueError: They are not there or not as expected.
        """

    @property
    def splits(self) -> Splits:
        """The data, read at the first use."""
        if self._splits is None:
            splits = self.load()
            self._splits = splits._replace(train=splits.train[: self.num_train])
        return self._splits

    def check_sizes(self, world_size: int) -> None:
        """Read the data, and see that there are enough of them for every device.

        Raises:
            ValueError: There are not, or the data cannot be read.
        """
        count = len(self.splits.train)
        if count < self.batch_size * world_size:
            raise ValueError(
                f"{count} training {self.noun} do not fill one batch of {self.batch_size} on each "
                f"of {world_size} devices. Use data.batch_size={count // world_size} or less."
            )
        fewest = min(len(self.splits.val), len(self.splits.test))
        if fewest < world_size:
            raise ValueError(
                f"{fewest} {self.noun} to validate or test on are fewer than {world_size} devices."
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

    def _evaluation_loader(self, items: Items) -> DataLoader:
        rank, world_size = self._world()
        batches = EvaluationBatches(len(items), self.batch_size, rank=rank, world_size=world_size)
        return self._loader(items, batches)

    def _loader(self, items: Items, batches: EpochBatches | EvaluationBatches) -> DataLoader:
        # batch_size=None: the sampler's items are whole lists of indices. No worker processes:
        # indexing memory needs none, and they would start on an epoch before it is set.
        return DataLoader(
            to_sequences(items),  # pyright: ignore[reportArgumentType]
            batch_size=None,
            sampler=batches,
            pin_memory=torch.cuda.is_available(),
        )

    def _world(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)


def to_sequences(items: Items) -> UInt8[Tensor, "_ t"]:
    """Of an image row by row, a pixel's channels next to each other."""
    return torch.from_numpy(items.reshape(len(items), -1))
