"""The CTC loss: the negative log-likelihood of labels without an alignment."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.precision import widened
from linear_transformers.shapes import Labels, Lengths, PerSequence, PerSequenceFlag


def frames_needed(labels: Sequence[Hashable]) -> int:
    """Return the fewest frames that can spell labels: one each, and a blank between repeats."""
    return len(labels) + sum(a == b for a, b in pairwise(labels))


def spellable(lengths: Lengths, labels: Labels, label_lengths: Lengths) -> PerSequenceFlag:
    """Return which utterances of a padded batch have the frames that their labels need."""
    repeats = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] != 0)
    return lengths >= label_lengths + repeats.sum(1)


def ctc_loss(
    scores: Float[Tensor, "b t p"], lengths: Lengths, labels: Labels, label_lengths: Lengths
) -> PerSequence:
    """Return the negative log-likelihood of each utterance's labels, in nats.

    Args:
        scores: The score of each label at each frame; they need not be normalised.
        lengths: The length of each utterance, in frames.
        labels: The labels, 1 to p - 1, padded with 0.
        label_lengths: The number of labels of each utterance.

    Returns:
        The losses, infinite where labels are not `spellable`: leave these utterances out.
    """
    (scores,) = widened(scores)
    log_probs = scores.log_softmax(-1)
    return F.ctc_loss(
        log_probs.transpose(0, 1), labels, lengths, label_lengths, blank=0, reduction="none"
    )
