"""Causal linear attention by its definition: O(t^2) time and memory. The tests' oracle."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.precision import mapped, widened, without_autocast
from linear_transformers.ops.recurrent import LinearState


def parallel(
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h m"],
    *,
    eps: float,
    phi: Callable[[Tensor], Tensor] | None = None,
    state: LinearState | None = None,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """Weigh every value by its key's similarity to the query: eq. 8 of the paper.

    Args:
        q: The queries; without `phi`, their features.
        k: The keys; without `phi`, their features.
        v: The values.
        eps: See `normalize`.
        phi: The feature map, applied to each query and key.
        state: The past before the first position, empty if absent. Left unmodified.

    Returns:
        The outputs in the type of `v`, and the state after the last position.
    """
    dtype = v.dtype
    q, k, v = widened(*mapped(phi, q, k), v)
    with without_autocast(v):
        weights = torch.einsum("bthc,bshc->bhts", q, k).tril()
        weighted_sum = torch.einsum("bhts,bshm->bthm", weights, v)
        total_weight = weights.sum(-1).transpose(1, 2)
        kv_sum = torch.einsum("bshc,bshm->bhcm", k, v)
        k_sum = k.sum(1)
        if state is not None:
            state = state.to(v.dtype)
            weighted_sum = weighted_sum + torch.einsum("bthc,bhcm->bthm", q, state.kv_sum)
            total_weight = total_weight + torch.einsum("bthc,bhc->bth", q, state.k_sum)
            kv_sum = kv_sum + state.kv_sum
            k_sum = k_sum + state.k_sum
        outputs = normalize(weighted_sum, total_weight, eps=eps)
    return outputs.to(dtype), LinearState(kv_sum, k_sum)
