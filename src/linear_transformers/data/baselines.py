"""Tables of counts: baselines that a model must beat to have learned anything."""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import numpy as np

from linear_transformers.data.images import Images
from linear_transformers.data.rows import Rows, in_parts
from linear_transformers.data.sequences import Splits

# Added to every count. Chosen on validation images, so that test images choose nothing.
PSEUDO_COUNTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# Neighbours are quantised to this many levels: most counts of 256 cubed would be 0.
CONTEXT_LEVELS = 17

# Maps images to the number of each value's context, [n, t] or [t].
Contexts = Callable[[Images], np.ndarray]


class Baselines(NamedTuple):
    """Test bits per dimension of two tables of counts."""

    histogram: float
    neighbours: float


def baselines(splits: Splits, num_levels: int) -> Baselines:
    """Fit both tables on training images, smooth them on validation, report them on test.

    `histogram` has one distribution per position. `neighbours` has one for each pair of left
    and upper neighbour (of the same channel; 0 outside the image), shared by all positions.
    """
    *_, channels = shape = splits.train.shape[1:]
    coarse = min(num_levels, CONTEXT_LEVELS)
    return Baselines(
        histogram=_bits_per_dim(splits, num_levels, _positions, prod(shape)),
        neighbours=_bits_per_dim(
            splits, num_levels, lambda x: _neighbours(x, num_levels, coarse), channels * coarse**2
        ),
    )


def _positions(images: Images) -> np.ndarray:
    """Return the position of each value, as the context that selects its distribution."""
    return np.arange(images[0].size)


def _neighbours(images: Images, num_levels: int, coarse: int) -> np.ndarray:
    """Return channel, left and upper neighbour of each value as one number."""
    levels = (np.arange(num_levels) * coarse // num_levels).astype(np.int32)[images]
    context = np.empty_like(levels)
    context[:] = np.arange(images.shape[-1]) * coarse**2
    context[:, :, 1:] += levels[:, :, :-1] * coarse
    context[:, 1:] += levels[:, :-1]
    return context.reshape(len(images), -1)


def _bits_per_dim(splits: Splits, num_levels: int, contexts: Contexts, num_contexts: int) -> float:
    def counted(images: Images | Rows) -> np.ndarray:
        counts = np.zeros(num_contexts * num_levels, np.int64)
        for part in in_parts(images):
            cells = contexts(part) * num_levels + part.reshape(len(part), -1)
            np.add.at(counts, cells.ravel(), 1)  # in place: there may be more cells than values
        return counts.reshape(-1, num_levels)

    train, val, test = (counted(images) for images in splits)

    def bits(counts: np.ndarray, pseudo_count: float) -> float:
        smoothed = train + pseudo_count
        log_probs = np.log2(smoothed / smoothed.sum(1, keepdims=True))
        return float(-(counts * log_probs).sum() / counts.sum())

    return bits(test, min(PSEUDO_COUNTS, key=lambda pseudo_count: bits(val, pseudo_count)))
