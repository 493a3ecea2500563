"""Items that lie in files, and are read when they are asked for: they may exceed memory."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

VALUES_AT_ONCE = 2**20  # of a pass over all items: what is computed of a value takes eight bytes


class Rows(ABC):
    """Items of one shape. `rows[i:j]` and `rows[indices]` read these, into memory.

    Attributes:
        shape: The number of items, and the shape of each.
        dtype: The type of their values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice | Sequence[int] | np.ndarray) -> np.ndarray:
        return self.read(np.arange(len(self))[which])

    @abstractmethod
    def read(self, indices: np.ndarray) -> np.ndarray:
        """Return the items of some numbers."""


class StoredRows(Rows):
    """The items of several arrays, one after the other: of memory-mapped files.

    Args:
        parts: The arrays, of one type and of items of one shape.
    """

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self.ends[-1]), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    def read(self, indices: np.ndarray) -> np.ndarray:
        items = np.empty((len(indices), *self.shape[1:]), self.dtype)
        where = np.searchsorted(self.ends, indices, side="right")
        for number in np.unique(where):
            part, here = self.parts[number], where == number
            items[here] = part[indices[here] - (self.ends[number] - len(part))]
        return items


class SomeRows(Rows):
    """Some of the items of others, each changed as it is read.

    Args:
        rows: The others.
        indices: The numbers of the items, in order.
        change: The function of items that they pass, to others of the shape; None is none.
        shape: The shape of an item; None is as it was.
    """

    def __init__(
        self,
        rows: Rows,
        indices: np.ndarray,
        change: Callable[[np.ndarray], np.ndarray] | None = None,
        shape: tuple[int, ...] | None = None,
    ):
        self.rows = rows
        self.indices = indices
        self.change = change
        self.shape = (len(indices), *(rows.shape[1:] if shape is None else shape))
        self.dtype = rows.dtype

    def read(self, indices: np.ndarray) -> np.ndarray:
        items = self.rows.read(self.indices[indices])
        return items if self.change is None else self.change(items)


def some(items: Any, indices: np.ndarray) -> Any:
    """Return the items of some numbers: of stored ones, without reading them."""
    return SomeRows(items, indices) if isinstance(items, Rows) else items[indices]


def in_parts(items: np.ndarray | Rows) -> Iterator[np.ndarray]:
    """Yield all items, some at a time."""
    size = max(1, VALUES_AT_ONCE // math.prod(items.shape[1:]))
    for start in range(0, len(items), size):
        yield items[start : start + size]
