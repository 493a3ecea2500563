"""The copy task of Katharopoulos et al. (2020), section 4.1: a word, a separator, the word."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from linear_transformers.config.ranges import Count, ranged
from linear_transformers.data.sequences import Items, SequenceShape, SequenceSource, Splits


@dataclass(frozen=True)
class CopyShape(SequenceShape):
    """The length of the padded sequences, and the number of symbols of words."""

    max_length: int
    num_symbols: int

    @property
    def length(self) -> int:
        return self.max_length

    @property
    def separator(self) -> int:
        """The value between a word and its copy."""
        return self.num_symbols

    @property
    def padding(self) -> int:
        """The value that pads a sequence after the copy."""
        return self.num_symbols + 1

    @property
    def num_values(self) -> int:
        return self.num_symbols + 2

    @property
    def description(self) -> str:
        return f"words of {self.num_symbols} symbols, copied: sequences of up to {self.max_length}"


class Copies(SequenceSource):
    """Random words of random lengths: w separator w.

    Only short words are in several splits: there are num_symbols^n words of n symbols.

    Args:
        batch_size: See `SequenceSource`.
        max_length: The length of a sequence; a word has 1 to (max_length - 1) / 2 symbols.
        num_symbols: The number of symbols that words are made of.
        num_sequences: The number of training sequences.
        num_held_out: The number of validation sequences, and of test sequences.
        options: See `SequenceSource`. The words do not depend on the seed.

    Raises:
        ValueError: A number is out of range.
    """

    @ranged
    def __init__(
        self,
        batch_size: Count,
        *,
        max_length: Annotated[int, Ge(3), Le(100_000)] = 128,
        num_symbols: Annotated[int, Ge(2), Le(254)] = 10,
        num_sequences: Count = 100_000,
        num_held_out: Count = 2_000,
        **options: Any,
    ):
        super().__init__(batch_size, **options)
        self._shape = CopyShape(max_length, num_symbols)
        self.sizes = (num_sequences, num_held_out, num_held_out)

    @property
    def shape(self) -> CopyShape:
        return self._shape

    def load(self) -> Splits:
        return Splits(*(copies(self.shape, size, seed=i) for i, size in enumerate(self.sizes)))


def copies(shape: CopyShape, count: int, *, seed: int) -> Items:
    """Return sequences [count, max_length], a function of the arguments alone."""
    random = np.random.default_rng((seed, shape.max_length, shape.num_symbols))
    longest = (shape.max_length - 1) // 2
    lengths = random.integers(1, longest, size=(count, 1), endpoint=True)
    words = random.integers(shape.num_symbols, size=(count, longest), dtype=np.uint8)
    place = np.arange(shape.max_length)
    source = np.where(place < lengths, place, place - lengths - 1).clip(0, longest - 1)
    sequences = np.take_along_axis(words, source, axis=1)
    sequences[place == lengths] = shape.separator
    sequences[place > 2 * lengths] = shape.padding
    return sequences
