"""Causal linear attention as an RNN: eqs. 16-20 of Katharopoulos et al. (2020).

    kv_sum += phi(k) v^T                         [b, h, c, m]   S in the paper
    k_sum  += phi(k)                             [b, h, c]      Z in the paper
    output  = phi(q) kv_sum / (phi(q) . k_sum)   [b, h, m]

Memory and time per token do not depend on how many tokens came before.
`parallel` is the definition these functions must agree with.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.precision import accumulation_dtype, widened, without_autocast


class LinearState(NamedTuple):
    """The state of all heads. Its size does not depend on the length."""

    kv_sum: Float[Tensor, "b k c m"]
    k_sum: Float[Tensor, "b k c"]

    def to(self, dtype: torch.dtype) -> "LinearState":
        """Return the state in a type: its model may have been moved to another one since."""
        return LinearState(self.kv_sum.to(dtype), self.k_sum.to(dtype))


def empty_state(
    batch: int,
    num_heads: int,
    feature_dim: int,
    value_dim: int,
    *,
    device: torch.device | str | None,
    dtype: torch.dtype,
) -> LinearState:
    """Return s_0 = z_0 = 0, in the type of sums over inputs of `dtype`."""
    options = {"device": device, "dtype": accumulation_dtype(dtype)}
    return LinearState(
        kv_sum=torch.zeros(batch, num_heads, feature_dim, value_dim, **options),
        k_sum=torch.zeros(batch, num_heads, feature_dim, **options),
    )


def step(
    q: Float[Tensor, "b h c"],
    k: Float[Tensor, "b k c"],
    v: Float[Tensor, "b k m"],
    state: LinearState,
    *,
    eps: float,
    rotated: tuple[Tensor, Tensor] | None = None,
) -> tuple[Float[Tensor, "b h m"], LinearState]:
    """Attend from one new position to itself and all earlier ones.

    Args:
        q: The features of the new query, of as many heads as the key has, or a multiple: each
            group of them reads one state.
        k: The features of the new key.
        v: The new value.
        state: The past, excluding this position. Left unmodified.
        eps: See `normalize`.
        rotated: The rotated query and key, which the sums with values are of; None is both as
            they are.

    Returns:
        The output at this position in the type of `v`, and the state including it.
    """
    dtype = v.dtype
    q, k, v, query, key = widened(q, k, v, *(rotated or (q, k)))
    with without_autocast(v):
        state = state.to(v.dtype)
        kv_sum = torch.addcmul(state.kv_sum, key.unsqueeze(-1), v.unsqueeze(-2))
        k_sum = state.k_sum + k
        q, query = (x.unflatten(1, (k.shape[1], -1)) for x in (q, query))
        weighted_sum = torch.einsum("bkjc,bkcm->bkjm", query, kv_sum).flatten(1, 2)
        total_weight = torch.einsum("bkjc,bkc->bkj", q, k_sum).flatten(1, 2)
        output = normalize(weighted_sum, total_weight, eps=eps)
    return output.to(dtype), LinearState(kv_sum, k_sum)
