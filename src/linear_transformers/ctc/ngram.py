"""An n-gram language model of labels.

A few dozen phones need no toolkit: KenLM must be compiled on many platforms, and pyctcdecode pins
an old NumPy.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

END = 0  # the end of a sequence: the blank's number, which no sequence contains


class NGram:
    """An n-gram model interpolated with all shorter contexts (Witten and Bell, 1991).

    Args:
        sequences: The training sequences, of labels 1 to `num_labels`.
        num_labels: The number of labels, without the blank.
        order: The order n: a label is predicted from the n - 1 before it.

    Raises:
        ValueError: The order is below 1, or there are no sequences.
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
            raise ValueError("A language model of no sequences was asked for; give at least one.")
        self._known: dict[tuple[int, ...], float] = {}

    def log_prob(self, label: int, before: Sequence[int]) -> float:
        """Return log p(label | all labels before) in nats; label 0 is the end of the sequence."""
        recent = tuple(before[max(0, len(before) - self.order + 1) :])
        context = (END,) * (self.order - 1 - len(recent)) + recent
        key = (*context, label)
        if key not in self._known:
            self._known[key] = math.log(self._probability(label, context))
        return self._known[key]

    def _probability(self, label: int, context: tuple[int, ...]) -> float:
        # The empty context is interpolated with the uniform distribution.
        shorter = self._probability(label, context[1:]) if context else 1 / (self.num_labels + 1)
        followers = self.counts.get(context)
        if followers is None:
            return shorter
        kinds, total = len(followers), followers.total()
        return (followers[label] + kinds * shorter) / (total + kinds)
