"""Causal linear attention in O(t): matrix products inside chunks, a running state between them.

    outputs of chunk n = tril(q k^T) v  +  q S,     S = sum of k^T v over the chunks before n

With chunks of length l this costs O(t l (c + m) + t c m) operations and stores one state a
chunk, t/l of them, instead of one a position.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.chunks import in_segments, join, last, split
from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.precision import mapped
from linear_transformers.ops.recurrent import LinearState, empty_state


def chunkwise(
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h m"],
    *,
    eps: float,
    phi: Callable[[Tensor], Tensor] | None = None,
    state: LinearState | None = None,
    chunk_size: int = 32,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """Compute what `parallel` defines, in time and memory that grow linearly with t.

    Args:
        q: See `parallel`.
        k: See `parallel`.
        v: See `parallel`.
        eps: See `normalize`.
        phi: See `parallel`. Applied to each segment while it is in the cache.
        state: See `parallel`.
        chunk_size: The positions of a chunk. Only speed depends on it.

    Returns:
        The outputs in the type of `v`, and the state after the last position.
    """
    if state is None and q.shape[1] <= chunk_size:
        # One chunk with nothing before it is the definition itself.
        return parallel(q, k, v, eps=eps, phi=phi)
    segment = partial(_segment, phi=phi, eps=eps)
    return in_segments(segment, (q, k, v), state=state, chunk_size=chunk_size)


def _segment(
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h m"],
    *,
    phi: Callable[[Tensor], Tensor] | None,
    state: LinearState | None,
    chunk_size: int,
    eps: float,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """Compute all chunks of a segment at once."""
    q, k = mapped(phi, q, k)
    batch, length, num_heads, feature_dim = q.shape
    if state is None:
        state = empty_state(
            batch, num_heads, feature_dim, v.shape[-1], device=v.device, dtype=v.dtype
        )
    state = state.to(v.dtype)
    # Short sequences make one short chunk: no padding to compute on.
    q, k, v = (split(x, max(1, min(chunk_size, length))) for x in (q, k, v))
    kv_sums = _running_sum(state.kv_sum, k.transpose(-1, -2) @ v)
    k_sums = _running_sum(state.k_sum, k.sum(-2))
    kv_before, k_before = kv_sums[:, :, :-1], k_sums[:, :, :-1]

    weights = (q @ k.transpose(-1, -2)).tril_()
    weighted_sum = weights @ v + q @ kv_before
    total_weight = weights.sum(-1) + (q @ k_before.unsqueeze(-1)).squeeze(-1)
    # Cut to length before dividing: padding has no weight, and 0/0 would reach the gradients.
    outputs = normalize(
        join(weighted_sum, length), join(total_weight.unsqueeze(-1), length)[..., 0], eps=eps
    )
    return outputs, LinearState(last(kv_sums), last(k_sums))


def _running_sum(start: Tensor, additions: Tensor) -> Tensor:
    """Return the state before each chunk and, last, after all: [b, h, n + 1, ...]."""
    return torch.cat([start.unsqueeze(2), additions], dim=2).cumsum(2)
