"""Data sets of sequences of small integers."""

from abc import abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from linear_transformers.config.ranges import Count, Seed, ranged
from linear_transformers.data.base import DataSource, Shape, Split
from linear_transformers.data.batches import EpochBatches, EvaluationBatches, loader_of
from linear_transformers.data.rows import Rows, some

Array = Integer[np.ndarray, "_ ..."]
Items = Array | Rows


@dataclass(frozen=True)
class SequenceShape(Shape):
    """The shape of sequences of integers.

    Attributes:
        bounded: Whether no sequence is longer than `length`.
    """

    bounded: ClassVar[bool] = True

    @property
    @abstractmethod
    def length(self) -> int:
        """The number of values in the longest sequence, at least of those in training."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The lengths of the axes that the sequence runs through, the last one fastest."""
        return (self.length,)

    @property
    @abstractmethod
    def num_values(self) -> int:
        """The number of different values, which run from 0 to `num_values` - 1."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(
                    f"{field.name}={getattr(self, field.name)}: every size of a sequence is at "
                    "least 1."
                )


SEEN = 16  # items of each split that are looked at before training


class Splits(NamedTuple):
    """The items of each split, all of one size: images, or sequences."""

    train: Items
    val: Items
    test: Items


class SequenceSource(DataSource):
    """Sequences of values, in memory or in files that are read batch by batch.

    Args:
        batch_size: The number of sequences in a batch, on each device.
        seed: See `DataSource`.
        num_train: The number of training sequences to use, the first ones; None is all.
    """

    noun: ClassVar[str] = "sequences"
    workers: int = 0  # processes that read; memory needs none

    @ranged
    def __init__(self, batch_size: Count, *, seed: Seed = 0, num_train: Count | None = None):
        super().__init__(seed)
        self.batch_size = batch_size
        self.num_train = num_train

    @property
    @abstractmethod
    def shape(self) -> SequenceShape:
        """The shape of the sequences."""

    @abstractmethod
    def load(self) -> Splits:
        """Read the data.

        Raises:
            ValueError: They are missing or malformed.
        """

    @cached_property
    def splits(self) -> Splits:
        """The data, read at the first use."""
        splits = self.load()
        if self.num_train is None:
            return splits
        if self.num_train > (found := len(splits.train)):
            raise ValueError(
                f"data.num_train={self.num_train} was asked for; there are {found} training "
                f"{self.noun}."
            )
        return splits._replace(train=some(splits.train, np.arange(self.num_train)))

    @property
    def description(self) -> str:
        train, val, test = (f"{len(items):,}" for items in self.splits)
        counts = f"{train} to train, {val} to validate, {test} to test"
        return f"{self.shape.description}; {counts}"

    def check(self, world_size: int) -> None:
        count = len(self.splits.train)
        if count < world_size:
            raise ValueError(f"{count} training {self.noun} are fewer than {world_size} devices.")
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
        for split, items in zip(Splits._fields, self.splits, strict=True):
            self._check_items(split, np.asarray(items[[*range(min(len(items), SEEN))]]))

    def _check_items(self, split: str, found: np.ndarray) -> None:
        """Refuse items that are none of the shape: those of a data set that somebody wrote."""
        length, most = self.shape.length, self.shape.num_values - 1
        whole, width = np.issubdtype(found.dtype, np.integer), found[0].size
        if whole and width == length and found.min() >= 0 and found.max() <= most:
            return
        raise ValueError(
            f"{type(self).__name__}.load: the first of {split} are {found.dtype}, of "
            f"{width} values from {found.min():.4g} to {found.max():.4g}; its shape says "
            f"{length} whole numbers from 0 to {most}."
        )

    def loader(self, split: Split, *, rank: int = 0, world_size: int = 1) -> DataLoader:
        items, place = getattr(self.splits, split), {"rank": rank, "world_size": world_size}
        if split == "train":
            batches = EpochBatches(len(items), self.batch_size, self.seed, **place)
        else:
            batches = EvaluationBatches(len(items), self.batch_size, **place)
        return loader_of(_Sequences(items), batches, workers=self.workers)


class _Sequences(Dataset[Any]):
    """Batches of items as sequences, indexed by lists of indices."""

    def __init__(self, items: Items):
        self.items = items

    def __getitem__(self, index: list[int]) -> Integer[Tensor, "b t"] | ValueError:
        try:
            return to_sequences(self.items[index])
        except ValueError as error:  # which a worker would raise with its traceback
            return error


def to_sequences(items: Array) -> Integer[Tensor, "_ t"]:
    """Return items as sequences: images row by row, the channels of a pixel adjacent."""
    return torch.from_numpy(items.reshape(len(items), -1))
