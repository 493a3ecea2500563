"""Greedy decoding: the best label of each frame, without repeats and blanks."""

from itertools import groupby

from jaxtyping import Float
from torch import Tensor

from linear_transformers.shapes import Lengths


def greedy(scores: Float[Tensor, "b t p"], lengths: Lengths) -> list[list[int]]:
    """Return the labels that each utterance's most likely path spells."""
    best = scores.argmax(-1).tolist()
    return [collapse(path[:length]) for path, length in zip(best, lengths.tolist(), strict=True)]


def collapse(path: list[int], before: int = 0) -> list[int]:
    """Return the labels that a path spells: each run of a label once, without blanks.

    Args:
        path: The label of each frame.
        before: The label of the frame before the path, if it continues another.
    """
    labels = [label for label, _ in groupby([before, *path])]
    return [label for label in labels[1:] if label != 0]
