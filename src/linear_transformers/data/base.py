"""What all data sets share."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol, runtime_checkable

from lightning import LightningDataModule


@runtime_checkable
class Shape(Protocol):
    """What a model must know of its data; a NamedTuple of plain values, saved with its weights."""

    @property
    def description(self) -> str:
        """For the run's log."""
        ...

    def _asdict(self) -> dict[str, Any]: ...


class DataModule(LightningDataModule, ABC):
    """Training, validation and test data, and loaders over them.

    Args:
        seed: The order of training data is a function of it and of the epoch, so that a
            resumed run sees what it would have seen.

    Attributes:
        noun: What its items are called.
    """

    noun: ClassVar[str]

    def __init__(self, seed: int = 0):
        super().__init__()
        self.seed = seed

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Known before the data are loaded, so that a model can be built first."""

    @abstractmethod
    def check_sizes(self, world_size: int) -> None:
        """Read the data, and see that there are enough of them for every device.

        Raises:
            ValueError: There are not, or the data cannot be read.
        """

    def world(self) -> tuple[int, int]:
        """This process among all that train together: its rank, and their number."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
