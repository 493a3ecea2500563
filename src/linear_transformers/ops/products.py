"""Linear attention by the products of queries and keys: O(t s) in time, without features.

For maps of which phi(q) . phi(k) is a function of q . k. With c features of it, where the length is
no more than c, this computes less than the sums over features do.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.ops.lengths import valid
from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.precision import widened, without_autocast


def by_products(
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b s h d"],
    v: Float[Tensor, "b s h m"],
    *,
    of_products: Callable[[Tensor], Tensor],
    eps: float,
    causal: bool,
    lengths: sh.Lengths | None = None,
) -> Float[Tensor, "b t h m"]:
    """Weigh every value by its key's similarity to the query: eq. 3 of Katharopoulos et al. (2020).

    Args:
        q: The queries.
        k: The keys.
        v: The values.
        of_products: Maps q . k to the similarity.
        eps: See `normalize`.
        causal: Whether a query sees the keys up to its own position only; t is s then.
        lengths: The numbers of keys that are no padding; None is all.

    Returns:
        The outputs in the type of `v`.
    """
    dtype = v.dtype
    q, k, v = widened(q, k, v)
    with without_autocast(v):
        weights = of_products(torch.einsum("bthd,bshd->bhts", q, k))
        if causal:
            weights = weights.tril()
        if lengths is not None:
            # Keys and values: padding may hold NaN, and 0 times NaN is NaN.
            seen = valid(lengths, k.shape[1])
            weights, v = weights.where(seen[:, None, None], 0), v.where(seen[..., None, None], 0)
        weighted_sum = torch.einsum("bhts,bshm->bthm", weights, v)
        return normalize(weighted_sum, weights.sum(-1).transpose(1, 2), eps=eps).to(dtype)
