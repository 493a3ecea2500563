"""Items that stay in files until they are asked for, and so may exceed memory."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

VALUES_AT_ONCE = 2**20  # in a pass over all items, which computes eight bytes of each


class Rows(ABC):
    """Items of one shape. `rows[i:j]` and `rows[indices]` read them into memory.

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
        """Read the items at these indices."""


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
    """Some of other items, changed as they are read.

    Args:
        rows: The other items.
        indices: Their indices in `rows`, in order.
        change: A function of items that is applied when they are read, if given.
        shape: The shape of an item after `change`; None is as before.
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
    """Return the items at these indices; stored ones are not read yet."""
    return SomeRows(items, indices) if isinstance(items, Rows) else items[indices]


def in_parts(items: np.ndarray | Rows) -> Iterator[np.ndarray]:
    """Yield all items, some at a time."""
    size = max(1, VALUES_AT_ONCE // math.prod(items.shape[1:]))
    for start in range(0, len(items), size):
        yield items[start : start + size]
