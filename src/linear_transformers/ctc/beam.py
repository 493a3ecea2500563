"""Prefix beam search: sums over all paths that spell the same labels, with a language model."""

import math
from collections import defaultdict
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from linear_transformers.ctc.ngram import END, NGram

NEVER = -math.inf


class _Mass(NamedTuple):
    """Nats of the paths that spell a prefix, by whether they end in a blank."""

    blank: float = NEVER
    label: float = NEVER

    @property
    def total(self) -> float:
        return _add(self.blank, self.label)


def beam_search(
    scores: Float[Tensor, "t p"],
    *,
    beam: int = 16,
    language_model: NGram | None = None,
    weight: float = 0.5,
    bonus: float = 0.0,
    threshold: float = 12.0,
) -> list[int]:
    """The labels of one utterance that are most likely in sum over their paths.

    Hannun et al. (2014), "First-pass large vocabulary continuous speech recognition using
    bi-directional recurrent DNNs": log p(labels | speech) + weight log p(labels) + bonus
    |labels|.

    Args:
        scores: Of each label at each frame; they need not be normalised.
        beam: Prefixes that are kept.
        language_model: Of labels.
        weight: Of the language model.
        bonus: Nats for each label, against a language model's liking of short ones.
        threshold: Labels that are so many nats below the best of their frame are not tried.

    Raises:
        ValueError: No beam.
    """
    if beam < 1:
        raise ValueError(f"beam={beam} was asked for; it must be at least 1.")
    frames = scores.double().log_softmax(-1)
    tried = frames >= frames.max(-1, keepdim=True).values - threshold

    def prior(prefix: tuple[int, ...]) -> float:
        if language_model is None or not prefix:
            return bonus * len(prefix)
        if prefix not in priors:
            added = weight * language_model.log_prob(prefix[-1], prefix[:-1]) + bonus
            priors[prefix] = prior(prefix[:-1]) + added
        return priors[prefix]

    priors: dict[tuple[int, ...], float] = {}
    beams: dict[tuple[int, ...], _Mass] = {(): _Mass(blank=0.0)}
    for frame, good in zip(frames, tried, strict=True):
        labels = good.nonzero().flatten().tolist()
        values = frame.tolist()
        grown: dict[tuple[int, ...], _Mass] = defaultdict(_Mass)
        for prefix, mass in beams.items():
            for label in labels:
                _grow(grown, prefix, mass, label, values[label])
        best = sorted(grown, key=lambda p: grown[p].total + prior(p), reverse=True)
        beams = {prefix: grown[prefix] for prefix in best[:beam]}

    def final(prefix: tuple[int, ...]) -> float:
        ending = weight * language_model.log_prob(END, prefix) if language_model else 0.0
        return beams[prefix].total + prior(prefix) + ending

    return list(max(beams, key=final))


def _grow(
    grown: dict[tuple[int, ...], _Mass], prefix: tuple[int, ...], mass: _Mass, label: int, x: float
) -> None:
    """One frame more after a prefix: a blank, its last label still, or a new label."""
    if label == 0:
        same = grown[prefix]
        grown[prefix] = same._replace(blank=_add(same.blank, mass.total + x))
        return
    longer = (*prefix, label)
    if prefix and label == prefix[-1]:
        same = grown[prefix]
        grown[prefix] = same._replace(label=_add(same.label, mass.label + x))
        new = mass.blank + x  # a second one needs a blank between
    else:
        new = mass.total + x
    grown[longer] = grown[longer]._replace(label=_add(grown[longer].label, new))


def _add(a: float, b: float) -> float:
    """log(exp a + exp b)."""
    if a < b:
        a, b = b, a
    return a if b == NEVER else a + math.log1p(math.exp(b - a))
