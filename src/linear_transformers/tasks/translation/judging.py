"""How near translations are to their references, by sacrebleu (Post, 2018)."""

from collections.abc import Sequence
from typing import NamedTuple


class Score(NamedTuple):
    """A figure of a whole text, 0 ... 100, and the signature of how it was computed."""

    name: str
    value: float
    signature: str


def judged(found: Sequence[str], references: Sequence[str]) -> list[Score]:
    """Return BLEU (Papineni et al., 2002) and chrF (Popovic, 2015) of a text.

    Args:
        found: The translations, as one would write them: not in tokens.
        references: The reference of each.
    """
    # Late: they take a while, and only judging needs them.
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scores = []
    for metric in (BLEU(), CHRF()):
        score = metric.corpus_score([*found], [[*references]])
        scores.append(Score(score.name, score.score, str(metric.get_signature())))
    return scores
