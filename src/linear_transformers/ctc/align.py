"""Forced alignment: the places in time of known labels."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import forced_align, merge_tokens

from linear_transformers.ctc.loss import check_labels, frames_needed


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
        labels: The labels, without blanks.

    Raises:
        ValueError: A label has no score, or there are fewer frames than `frames_needed`.
    """
    if not labels:
        return []
    check_labels(labels, scores.shape[-1])
    if (needed := frames_needed(labels)) > len(scores):
        raise ValueError(f"{len(scores)} frames were given; these labels need {needed}.")
    log_probs = scores.float().log_softmax(-1).cpu()
    path, found = forced_align(log_probs[None], torch.tensor([list(labels)]), blank=0)
    spans = merge_tokens(path[0], found[0].exp())
    assert [span.token for span in spans] == list(labels)
    return [Span(span.token, span.start, span.end, span.score) for span in spans]
