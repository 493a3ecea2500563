"""Where labels stand in time, once it is known which they are."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import forced_align


class Span(NamedTuple):
    """A label from frame `start` up to, not including, frame `end`; the mean probability there."""

    label: int
    start: int
    end: int
    probability: float


def align(scores: Float[Tensor, "t p"], labels: Sequence[int]) -> list[Span]:
    """The most likely path that spells labels.

    Args:
        scores: Of each label at each frame; they need not be normalised.
        labels: As many as `frames_needed` allows.
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
