"""What all data sets share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch.utils.data import DataLoader

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True)
class Shape(ABC):
    """What a model must know of its data: plain values, saved with its weights.

    Raises:
        ValueError: A value that no data set has. A shape checks itself, whoever makes it.
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """The line of a run's log."""


class DataSource(ABC):
    """Training, validation and test data, and loaders over them.

    Everything is read when it is first asked for.

    Args:
        seed: The seed of the order of training data, which is a function of it and of the
            epoch: a resumed run sees what it would have seen.

    Attributes:
        noun: What its items are called.
    """

    noun: ClassVar[str]

    def __init__(self, seed: int = 0):
        self.seed = seed

    @property
    @abstractmethod
    def shape(self) -> Any:
        """The `Shape` of the data."""

    def fetch(self) -> None:  # noqa: B027
        """Fetch what is missing. Called in one process only."""

    @abstractmethod
    def check(self, world_size: int) -> None:
        """Read the data, and see that there are enough of them for every device.

        Raises:
            ValueError: There are not, or the data cannot be read.
        """

    @abstractmethod
    def loader(self, split: Split, *, rank: int = 0, world_size: int = 1) -> DataLoader:
        """Return a loader over one device's share of a split.

        Args:
            split: Which part. The sampler of `train` is a `TrainingBatches`.
            rank: The device's number.
            world_size: The number of devices.
        """
