"""The best label of each frame, without repeats and blanks."""

from itertools import groupby

from jaxtyping import Float
from torch import Tensor

from linear_transformers.shapes import Lengths


def greedy(scores: Float[Tensor, "b t p"], lengths: Lengths) -> list[list[int]]:
    """Decode each utterance by its most likely path."""
    best = scores.argmax(-1).tolist()
    return [collapse(path[:length]) for path, length in zip(best, lengths.tolist(), strict=True)]


def collapse(path: list[int], before: int = 0) -> list[int]:
    """What a path spells: each run of a label once, blanks not at all.

    Args:
        path: A label for each frame.
        before: The label of the frame before the first, where the path goes on.
    """
    labels = [label for label, _ in groupby([before, *path])]
    return [label for label in labels[1:] if label != 0]
