"""The interface of all data sets."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch.utils.data import DataLoader

from linear_transformers.config.ranges import Seed, ranged

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


def place_of(name: str) -> int:
    """Return a 32-bit hash of a name. What is held out by it stays held out when others come."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:4])


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files at any depth, through links, but for hidden ones."""
    seen = set()  # a link may lead back
    for place, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(place, name) for name in names if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


@dataclass(frozen=True)
class Shape(ABC):
    """The facts about data that a model is built from: plain values, saved with its weights.

    Raises:
        ValueError: A value is out of range. A shape validates itself.
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """The data in one line, for a run's log."""


class DataSource(ABC):
    """Training, validation and test data, and loaders over them.

    Data are read at the first use.

    Args:
        seed: The seed of the order of training data. The order is a function of seed and epoch,
            so a resumed run continues it.

    Attributes:
        noun: The name of its items, in the plural.
    """

    noun: ClassVar[str]

    @ranged
    def __init__(self, seed: Seed = 0):
        self.seed = seed
        self._notes: list[str] = []  # on what was left out in reading

    @property
    @abstractmethod
    def shape(self) -> Any:
        """The `Shape` of the data."""

    @property
    def description(self) -> str:
        """The data in one line, for a run's log."""
        return self.shape.description

    def notes(self) -> list[str]:
        """Return what a run has to say of its data, in lines."""
        return self._notes

    def fetch(self) -> None:  # noqa: B027
        """Download what is missing. Called in one process only."""

    @abstractmethod
    def check(self, world_size: int) -> None:
        """Read the data, and check that there are enough for every device.

        Raises:
            ValueError: There are too few, or they cannot be read.
        """

    @abstractmethod
    def loader(self, split: Split, *, rank: int = 0, world_size: int = 1) -> DataLoader:
        """Return a loader over one device's share of a split.

        Args:
            split: The split. The sampler of `train` is a `TrainingBatches`.
            rank: The rank of the device.
            world_size: The number of devices.
        """
