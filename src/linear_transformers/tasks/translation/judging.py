"""How near translations are to their references, by sacrebleu (Post, 2018)."""

from collections.abc import Sequence
from typing import NamedTuple


class Score(NamedTuple):
    """A figure of a whole text, 0 ... 100, and the signature of how it was computed."""

    name: str
    value: float
    signature: str


def judged(found: Sequence[str], references: Sequence[str]) -> list[Score]:
    """Return BLEU (Papineni et al., 2002), as it is and of lower case, and chrF (Popovic, 2015).

    Args:
        found: The translations, as one would write them: not in tokens.
        references: The reference of each.
    """
    # Late: they take a while, and only judging needs them.
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    metrics = {"BLEU": BLEU(), "BLEU_lower_case": BLEU(lowercase=True), "chrF": CHRF()}
    scores = []
    for name, metric in metrics.items():
        value = metric.corpus_score([*found], [[*references]]).score
        scores.append(Score(name, value, str(metric.get_signature())))
    return scores
