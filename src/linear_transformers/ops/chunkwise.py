"""Causal linear attention in O(t): matrix products inside chunks, a running state between them.

    outputs of chunk n = tril(q k^T) v  +  q S,     S = sum of k^T v over the chunks before n

With chunks of length l this costs O(t l (c + m) + t c m) operations and stores one state a
chunk, t/l of them, instead of one a position. A GPU is given all chunks of a sequence at once; a
CPU one segment after the other, of as many chunks as its cache holds.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.chunks import join, split
from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.precision import mapped, widened, without_autocast
from linear_transformers.ops.recurrent import LinearState, empty_state

CACHED_ROWS = 2**13  # b t h of a segment whose products stay in a CPU's cache


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
    dtype = v.dtype
    if state is None and q.shape[1] <= chunk_size:
        # One chunk with nothing before it is the definition itself.
        return parallel(q, k, v, eps=eps, phi=phi)
    outputs, size = [], _segment_length(v, chunk_size)
    with without_autocast(v):
        for qs, ks, vs in zip(q.split(size, 1), k.split(size, 1), v.split(size, 1), strict=True):
            features = widened(*mapped(phi, qs, ks), vs)
            output, state = _attend(*features, state=state, chunk_size=chunk_size, eps=eps)
            outputs.append(output.to(dtype))
    assert state is not None
    # Contiguous copies: a view would keep the states of all chunks in memory.
    state = LinearState(*(sums.contiguous() for sums in state))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), state


def _segment_length(v: Float[Tensor, "b t h m"], chunk_size: int) -> int:
    """Return the length of a segment: whole chunks, at least one."""
    batch, length, num_heads, _ = v.shape
    if v.device.type != "cpu":
        return max(1, length)
    return chunk_size * max(1, CACHED_ROWS // (chunk_size * max(1, batch * num_heads)))


def _attend(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    *,
    state: LinearState | None,
    chunk_size: int,
    eps: float,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """Compute all chunks of a segment at once."""
    batch, length, num_heads, feature_dim = q.shape
    if state is None:
        state = empty_state(
            batch, num_heads, feature_dim, v.shape[-1], device=v.device, dtype=v.dtype
        )
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
    return outputs, LinearState(kv_sums[:, :, -1], k_sums[:, :, -1])


def _running_sum(start: Tensor, additions: Tensor) -> Tensor:
    """Return the state before each chunk and, last, after all: [b, h, n + 1, ...]."""
    return torch.cat([start.unsqueeze(2), additions], dim=2).cumsum(2)
