"""Forced alignment: the places in time of known labels."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import forced_align


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
    spans, frame = [], 0
    for label, run in groupby(path[0].tolist()):
        end = frame + len(list(run))
        if label != 0:
            probability = found[0, frame:end].exp().mean().item()
            spans.append(Span(label, frame, end, probability))
        frame = end
    assert [span.label for span in spans] == list(labels)
    return spans
