"""How likely a label is after those before it: an n-gram model of phones.

A few dozen phones need no toolkit: KenLM must be compiled on many platforms, and pyctcdecode pins
a NumPy of years ago.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

END = 0  # the blank's number, which no sequence contains


class NGram:
    """Interpolated with shorter contexts, down to none (Witten and Bell, 1991).

    Args:
        sequences: Labels, 1 to `num_labels`, to count in.
        num_labels: How many labels there are.
        order: n: a label is predicted from the n - 1 before it.

    Raises:
        ValueError: An order below 1, or nothing to count in.
    """

    def __init__(self, sequences: Iterable[Sequence[int]], num_labels: int, *, order: int = 3):
        if order < 1:
            raise ValueError(f"order={order} was asked for; it must be at least 1.")
        self.num_labels = num_labels
        self.order = order
        self.counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for sequence in sequences:
            padded = [END] * (order - 1) + [*sequence, END]
            for i in range(order - 1, len(padded)):
                for n in range(order):
                    self.counts[tuple(padded[i - n : i])][padded[i]] += 1
        if not self.counts:
            raise ValueError("A language model was to be made of no sequences at all.")
        self._known: dict[tuple[int, ...], float] = {}

    def log_prob(self, label: int, before: Sequence[int]) -> float:
        """Nats: of a label, or of the end (0), after a prefix that begins with its sequence."""
        recent = tuple(before[max(0, len(before) - self.order + 1) :])
        context = (END,) * (self.order - 1 - len(recent)) + recent
        key = (*context, label)
        if key not in self._known:
            self._known[key] = math.log(self._probability(label, context))
        return self._known[key]

    def _probability(self, label: int, context: tuple[int, ...]) -> float:
        # Below no context at all lies the uniform distribution.
        shorter = self._probability(label, context[1:]) if context else 1 / (self.num_labels + 1)
        followers = self.counts.get(context)
        if followers is None:
            return shorter
        kinds, total = len(followers), followers.total()
        return (followers[label] + kinds * shorter) / (total + kinds)
