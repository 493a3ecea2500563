"""Cross-entropy of many classes, without the scores of all positions at once."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from linear_transformers.ops.precision import widened, without_autocast

IGNORED = -100  # a target that does not count
FEW = 1000  # classes: all their scores at once take less time than parts of them


def cross_entropy(
    x: Float[Tensor, "n e"],
    weight: Float[Tensor, "v e"],
    targets: Int[Tensor, " n"],
    *,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the nats of all targets together, by the softmax of scores z = W x.

        sum over targets of log(sum_c exp(z_c)) - (1 - s) z_target - s mean_c(z_c)

    Where classes are many, torch computes scores and gradients for some positions at a time. Its
    function knows no smoothing, for which each target's score and the mean of W suffice. All is
    computed in float32 at least.

    Args:
        x: What the scores are computed from.
        weight: W.
        targets: The class of each position, or `IGNORED`.
        label_smoothing: The share s of a target's probability that is divided among all classes
            (Szegedy et al., 2015).
    """
    with without_autocast(x):
        x, weight = widened(x, weight)
        return _summed(x, weight, targets, label_smoothing)


def _summed(x: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    if len(weight) < FEW or not hasattr(nn, "LinearCrossEntropyOptions"):  # torch 2.11 has none
        scores = F.linear(x, weight)
        return F.cross_entropy(scores, targets, reduction="sum", label_smoothing=label_smoothing)
    options = nn.LinearCrossEntropyOptions(allow_retain_graph=torch.compiler.is_compiling())
    nats = F.linear_cross_entropy(x, weight, targets, reduction="sum", options=options)
    if label_smoothing:
        counted = targets != IGNORED
        scores = (x * weight[targets.where(counted, 0)]).sum(-1)
        excess = torch.where(counted, scores - x @ weight.mean(0), 0)
        nats = nats + label_smoothing * excess.sum()
    return nats
