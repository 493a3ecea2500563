"""Linear attention without a causal mask: global sums, read by any number of queries.

Eq. 5-6 of Katharopoulos et al. (2020). The sums over keys are a memory of constant size, computed
once, for bidirectional self-attention and for cross-attention alike.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.ops.lengths import valid
from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.precision import widened, without_autocast
from linear_transformers.ops.recurrent import LinearState


def summarize(
    k: Float[Tensor, "b s h c"],
    v: Float[Tensor, "b s h m"],
    lengths: sh.Lengths | None = None,
    *,
    rotated: Float[Tensor, "b s h c"] | None = None,
) -> LinearState:
    """Return the sums over all keys, or over each sequence's first `lengths`.

    Args:
        k: The features of the keys.
        v: The values.
        lengths: The numbers of keys that are no padding; None is all.
        rotated: The rotated features, which the sums with values are of; None is `k`.
    """
    given = widened(k, v) if rotated is None else widened(k, v, rotated)
    if lengths is not None:
        # Keys and values: padding may hold NaN, and 0 times NaN is NaN.
        mask = valid(lengths, k.shape[1])[..., None, None]
        given = tuple(x.where(mask, 0) for x in given)
    k, v = given[:2]
    numerator = k if rotated is None else given[2]
    with without_autocast(v):
        return LinearState(torch.einsum("bshc,bshm->bhcm", numerator, v), k.sum(1))


def read(
    q: Float[Tensor, "b t h c"],
    memory: LinearState,
    *,
    eps: float,
    rotated: Float[Tensor, "b t h c"] | None = None,
) -> Float[Tensor, "b t h m"]:
    """Return the output of each query to a memory, in the type of sums over the queries.

    Args:
        q: The features of the queries.
        memory: The sums over keys and values.
        eps: See `normalize`.
        rotated: The rotated features, where `memory.kv_sum` is of rotated keys; the denominator
            has none.
    """
    q, numerator = widened(q, q if rotated is None else rotated)
    memory = memory.to(q.dtype)
    with without_autocast(q):
        weighted_sum = torch.einsum("bthc,bhcm->bthm", numerator, memory.kv_sum)
        total_weight = torch.einsum("bthc,bhc->bth", q, memory.k_sum)
        return normalize(weighted_sum, total_weight, eps=eps)
