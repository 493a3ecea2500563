"""Prefix beam search: sums over all paths that spell the same labels, with a language model."""

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from linear_transformers.ctc.ngram import END, NGram

NEVER = -math.inf


class _Mass(NamedTuple):
    """Nats of the paths that spell a prefix, by whether they end in a blank; and what the
    language model and the bonus add to them."""

    blank: float = NEVER
    label: float = NEVER
    prior: float = 0.0

    @property
    def total(self) -> float:
        return _add(self.blank, self.label)

    @property
    def value(self) -> float:
        return self.total + self.prior


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

    def prior(prefix: tuple[int, ...], label: int) -> float:
        known = language_model.log_prob(label, prefix) if language_model else 0.0
        return weight * known + (0.0 if label == END else bonus)

    beams: dict[tuple[int, ...], _Mass] = {(): _Mass(blank=0.0)}
    for frame, good in zip(frames, tried, strict=True):
        labels = good.nonzero().flatten().tolist()
        values = frame.tolist()
        grown: dict[tuple[int, ...], _Mass] = {}
        for prefix, mass in beams.items():
            for label in labels:
                _grow(grown, prefix, mass, label, values[label], prior)
        best = sorted(grown, key=lambda prefix: grown[prefix].value, reverse=True)
        beams = {prefix: grown[prefix] for prefix in best[:beam]}
    return list(max(beams, key=lambda prefix: beams[prefix].value + prior(prefix, END)))


def _grow(
    grown: dict[tuple[int, ...], _Mass],
    prefix: tuple[int, ...],
    mass: _Mass,
    label: int,
    nats: float,
    prior: Callable[[tuple[int, ...], int], float],
) -> None:
    """One frame more after a prefix: a blank, its last label still, or a new label."""
    same = grown.get(prefix, _Mass(prior=mass.prior))
    if label == END:
        grown[prefix] = same._replace(blank=_add(same.blank, mass.total + nats))
        return
    before = mass.total
    if prefix and label == prefix[-1]:
        grown[prefix] = same._replace(label=_add(same.label, mass.label + nats))
        before = mass.blank  # a second one needs a blank between
    longer = (*prefix, label)
    new = grown.get(longer)
    if new is None:
        new = _Mass(prior=mass.prior + prior(prefix, label))
    grown[longer] = new._replace(label=_add(new.label, before + nats))


def _add(a: float, b: float) -> float:
    """log(exp a + exp b)."""
    if a < b:
        a, b = b, a
    return a if b == NEVER else a + math.log1p(math.exp(b - a))
