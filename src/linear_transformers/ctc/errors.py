"""Confusion counts and error rates. Counts add up over batches and devices."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.ctc.edits import edits

# [a, b] is how often b stands where a should; row 0 counts insertions, column 0 deletions.
Confusions = Int[Tensor, "said heard"]


def confusions(
    references: Sequence[Sequence[int]], hypotheses: Sequence[Sequence[int]], num_labels: int
) -> Confusions:
    """Count the edits that turn references into hypotheses, on the CPU.

    Args:
        references: The labels that were said.
        hypotheses: The labels that were heard.
        num_labels: The number of labels above the blank.
    """
    pairs = [
        pair
        for reference, hypothesis in zip(references, hypotheses, strict=True)
        for pair in edits(reference, hypothesis)
    ]
    said, heard = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T
    counts = torch.zeros(1 + num_labels, 1 + num_labels, dtype=torch.long)
    return counts.index_put_((said, heard), torch.tensor(1), accumulate=True)


def error_rates(counts: Confusions) -> dict[str, Float[Tensor, ""]]:
    """Return the error rates, in percent of the reference labels."""
    said = counts[1:].sum().clamp(min=1)
    right = counts.diagonal().sum()
    errors = {
        "errors": counts.sum() - right,
        "substitutions": counts[1:, 1:].sum() - right,
        "deletions": counts[1:, 0].sum(),
        "insertions": counts[0, 1:].sum(),
    }
    return {name: 100 * count / said for name, count in errors.items()}


def commonest(counts: Confusions, number: int) -> list[tuple[int, int, int]]:
    """Return the commonest errors: what was said, what was heard, how often."""
    wrong = counts.clone().fill_diagonal_(0).flatten()
    most = wrong.topk(min(number, wrong.numel()))
    size = len(counts)
    found = zip(most.indices.tolist(), most.values.tolist(), strict=True)
    return [(place // size, place % size, times) for place, times in found if times]
