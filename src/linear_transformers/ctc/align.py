"""Forced alignment: the places in time of known labels."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import forced_align, merge_tokens


class Span(NamedTuple):
    """A label from frame `start` up to, not including, `end`, and its mean probability there."""

    label: int
    start: int
    end: int
    probability: float


def align(scores: Float[Tensor, "t p"], labels: Sequence[int]) -> list[Span]:
    """Return the spans of labels on the most likely path that spells them.

    Args:
        scores: The score of each label at each frame; they need not be normalised.
        labels: The labels, without blanks. They must have the frames that `frames_needed` says.
    """
    if not labels:
        return []
    log_probs = scores.float().log_softmax(-1).cpu()
    path, found = forced_align(log_probs[None], torch.tensor([list(labels)]), blank=0)
    spans = merge_tokens(path[0], found[0].exp())
    assert [span.token for span in spans] == list(labels)
    return [Span(span.token, span.start, span.end, span.score) for span in spans]
