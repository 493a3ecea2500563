"""The CTC loss: the negative log-likelihood of labels without an alignment."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.lengths import valid
from linear_transformers.ops.precision import widened
from linear_transformers.shapes import Labels, Lengths, PerSequence, PerSequenceFlag


def frames_needed(labels: Sequence[Hashable]) -> int:
    """Return the fewest frames that can spell labels: one each, and a blank between repeats."""
    return len(labels) + sum(a == b for a, b in pairwise(labels))


def check_labels(labels: Sequence[int], num_scores: int) -> None:
    """Refuse labels that have no score: PyTorch's operators would read other memory.

    Args:
        labels: The labels.
        num_scores: The number of scores of a frame, the first of which is the blank's.

    Raises:
        ValueError: A label is not within 1 to num_scores - 1.
    """
    for label in (min(labels, default=1), max(labels, default=1)):
        if not 0 < label < num_scores:
            raise ValueError(
                f"Label {label} was given; with {num_scores} scores a frame, of which the first is "
                f"the blank's, labels are 1 to {num_scores - 1}."
            )


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

    Raises:
        ValueError: A label is none of these. On a GPU that is not looked at, which would wait.
    """
    if labels.device.type == "cpu":
        check_labels(labels[valid(label_lengths, labels.shape[1])].tolist(), scores.shape[-1])
    (scores,) = widened(scores)
    log_probs = scores.log_softmax(-1)
    return F.ctc_loss(
        log_probs.transpose(0, 1), labels, lengths, label_lengths, blank=0, reduction="none"
    )
