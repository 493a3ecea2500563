"""Tables of counts: baselines that a model must beat to have learned anything."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from linear_transformers.data.images import Images
from linear_transformers.data.rows import Rows, in_parts
from linear_transformers.data.sequences import Splits

# Added to every count. Chosen on validation images, so that test images choose nothing.
PSEUDO_COUNTS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# Neighbours are quantised to this many levels: most counts of 256 cubed would be 0.
CONTEXT_LEVELS = 17

# Maps images to the context of each value, [n, t] or [t], and the number of contexts.
Contexts = Callable[[Images], tuple[np.ndarray, int]]


class Baselines(NamedTuple):
    """Test bits per dimension of two tables of counts."""

    histogram: float
    neighbours: float


def baselines(splits: Splits, num_levels: int) -> Baselines:
    """Fit both tables on training images, smooth them on validation, report them on test.

    `histogram` has one distribution per position. `neighbours` has one for each pair of left
    and upper neighbour (of the same channel; 0 outside the image), shared by all positions.
    """
    return Baselines(
        histogram=_bits_per_dim(splits, num_levels, _positions),
        neighbours=_bits_per_dim(splits, num_levels, lambda x: _neighbours(x, num_levels)),
    )


def _positions(images: Images) -> tuple[np.ndarray, int]:
    """Return the position of each value, as the context that selects its distribution."""
    length = images[0].size
    return np.arange(length), length


def _neighbours(images: Images, num_levels: int) -> tuple[np.ndarray, int]:
    """Return channel, left and upper neighbour of each value as one number."""
    levels, channels = min(num_levels, CONTEXT_LEVELS), images.shape[-1]
    coarse = (np.arange(num_levels) * levels // num_levels)[images]
    context = np.empty(images.shape, np.int64)
    context[:] = np.arange(channels) * levels**2
    context[:, :, 1:] += coarse[:, :, :-1] * levels
    context[:, 1:] += coarse[:, :-1]
    return context.reshape(len(images), -1), channels * levels**2


def _bits_per_dim(splits: Splits, num_levels: int, contexts: Contexts) -> float:
    def counted(images: Images | Rows) -> np.ndarray:
        counts = np.int64(0)
        for part in in_parts(images):
            context, size = contexts(part)
            cells = context * num_levels + part.reshape(len(part), -1)
            counts += np.bincount(cells.ravel(), minlength=size * num_levels)
        return counts.reshape(-1, num_levels)

    train, val, test = (counted(images) for images in splits)

    def bits(counts: np.ndarray, pseudo_count: float) -> float:
        smoothed = train + pseudo_count
        log_probs = np.log2(smoothed / smoothed.sum(1, keepdims=True))
        return float(-(counts * log_probs).sum() / counts.sum())

    return bits(test, min(PSEUDO_COUNTS, key=lambda pseudo_count: bits(val, pseudo_count)))
