"""Features whose dot products are squares of dot products."""

import torch
from jaxtyping import Float
from torch import Tensor


def symmetric_square(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch pairs"]:
    """Return all products of two entries, each pair once: f(q) . f(k) = (q . k)^2 exactly.

    The d (d + 1) / 2 features of the symmetric product instead of the d^2 of the full one:
    a product of two different entries counts twice, so it is weighed by sqrt(2).
    """
    width = x.shape[-1]
    i, j = torch.triu_indices(width, width, device=x.device)
    weight = (1 + (i != j)).to(x.dtype).sqrt()
    return x[..., i] * x[..., j] * weight


def num_pairs(width: int) -> int:
    """Return the width of `symmetric_square`."""
    return width * (width + 1) // 2
