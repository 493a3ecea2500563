"""The one division. Libraries before this one lost or doubled a denominator seven times."""

from jaxtyping import Float
from torch import Tensor


def normalize(
    weighted_sum: Float[Tensor, "*batch m"],
    total_weight: Float[Tensor, "*batch"],
    *,
    eps: float,
) -> Float[Tensor, "*batch m"]:
    """Turn a weighted sum of values into their weighted mean: eq. 8's fraction.

    Args:
        weighted_sum: The sum phi(q)^T S, one vector of values per query.
        total_weight: The sum phi(q)^T Z, non-negative for every map whose features are.
        eps: The number added to the denominator, once, after the dot product. Where all
            weights vanish, the output is 0 instead of NaN.
    """
    return weighted_sum / (total_weight + eps).unsqueeze(-1)
