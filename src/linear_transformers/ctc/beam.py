"""Prefix beam search: sums over all paths of the same labels, with a language model."""

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from linear_transformers.ctc.ngram import END, NGram

NEVER = -math.inf


class _Mass(NamedTuple):
    """The log-probabilities of a prefix's paths that end in a blank or a label, in nats; `prior` is
    what the language model and the bonus add to them."""

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
    """Return the most likely labels of one utterance, summed over their paths.

    The labels maximise log p(labels | speech) + weight log p(labels) + bonus |labels|: Hannun et
    al. (2014), "First-pass large vocabulary continuous speech recognition using bi-directional
    recurrent DNNs".

    Args:
        scores: The score of each label at each frame; they need not be normalised.
        beam: The number of prefixes that are kept.
        language_model: The language model of labels, or None.
        weight: The weight of the language model.
        bonus: The bonus for each label, in nats: language models prefer short sequences.
        threshold: The distance from a frame's best label, in nats, beyond which labels are skipped.

    Raises:
        ValueError: The beam is below 1, or a score is NaN or infinite.
    """
    if beam < 1:
        raise ValueError(f"beam={beam} was asked for; it must be at least 1.")
    frames = scores.double().log_softmax(-1)
    if frames.isnan().any():  # of scores that are NaN or infinite
        raise ValueError("A score's probability is NaN, so nothing can be decoded from it.")
    tried = frames >= frames.max(-1, keepdim=True).values - threshold

    def prior(prefix: tuple[int, ...], label: int) -> float:
        nats = language_model.log_prob(label, prefix) if language_model else 0.0
        return weight * nats + (0.0 if label == END else bonus)

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
    """Extend a prefix by one frame: a blank, its last label again, or a new label."""
    same = grown.get(prefix, _Mass(prior=mass.prior))
    if label == 0:  # the blank
        grown[prefix] = same._replace(blank=_add(same.blank, mass.total + nats))
        return
    before = mass.total
    if prefix and label == prefix[-1]:
        grown[prefix] = same._replace(label=_add(same.label, mass.label + nats))
        before = mass.blank  # a repeated label needs a blank in between
    longer = (*prefix, label)
    new = grown.get(longer)
    if new is None:
        new = _Mass(prior=mass.prior + prior(prefix, label))
    grown[longer] = new._replace(label=_add(new.label, before + nats))


def _add(a: float, b: float) -> float:
    """Return log(exp a + exp b)."""
    if a < b:
        a, b = b, a
    return a if b == NEVER else a + math.log1p(math.exp(b - a))
