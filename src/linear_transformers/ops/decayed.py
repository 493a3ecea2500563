"""Unnormalised linear attention with a decay: retention and gated linear attention.

    S_i = diag(a_i) S_(i-1) + k_i v_i^T,   output_i = S_i^T q_i,   0 < a_i <= 1

Sun et al. (2023), eq. 5, with one a for each head; Yang et al. (2024, "Gated Linear Attention"),
eq. 4, with one for each feature and position. `decayed_step` is the recurrence itself, and what
`decayed` must agree with.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.chunks import in_segments, join, split
from linear_transformers.ops.precision import widened, without_autocast


def decayed(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    log_decay: Float[Tensor, "b t h decays"],
    *,
    state: Float[Tensor, "b h c m"] | None = None,
    chunk_size: int = 32,
) -> tuple[Float[Tensor, "b t h m"], Float[Tensor, "b h c m"]]:
    """Compute all positions: matrix products inside chunks, the state between them.

    Args:
        q: The queries.
        k: The keys.
        v: The values.
        log_decay: The logarithms of a, one for each feature, or one for all (a last dimension
            of 1). Where there are several, the sum over any half of a chunk must stay above
            -80, or float32 overflows.
        state: The past, empty if absent. Left unmodified.
        chunk_size: The positions of a chunk. Only speed and that limit depend on it.

    Returns:
        The outputs in the type of `v`, and the state after the last position.
    """
    inputs = q, k, v, log_decay
    return in_segments(segment, inputs, state=state, chunk_size=chunk_size)


def segment(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    state: Float[Tensor, "b h c m"] | None,
    chunk_size: int,
) -> tuple[Float[Tensor, "b t h m"], Float[Tensor, "b h c m"]]:
    """Compute all chunks of a segment at once."""
    length = q.shape[1]
    if state is None:
        state = q.new_zeros(len(q), *q.shape[2:], v.shape[3])
    state = state.to(q.dtype)
    # Padding has no key and no decay: it leaves the state as it is.
    size = max(1, min(chunk_size, length))
    q, k, v, log_decay = (split(x, size) for x in (q, k, v, log_decay))
    since_start = log_decay.cumsum(-2)
    whole = since_start[..., -1:, :]
    if log_decay.shape[-1] == 1:
        decay = between(log_decay[..., 0])
        weights = (q @ k.mT) * decay
        additions = (k * decay[..., -1, :, None]).mT @ v
    else:
        middle = middle_of(since_start)
        grown = k * (middle - since_start).exp()
        weights = ((q * (since_start - middle).exp()) @ grown.mT).tril()
        additions = (whole - middle).exp().mT * (grown.mT @ v)
    states = [state]
    # unbind, not an index: the gradient of each index is as large as all chunks together.
    for kept, addition in zip(whole.exp().mT.unbind(2), additions.unbind(2), strict=True):
        states.append(torch.addcmul(addition, kept, states[-1]))
    outputs = weights @ v + (q * since_start.exp()) @ torch.stack(states, dim=2)[:, :, :-1]
    return join(outputs, length), states[-1] if length else state.clone()


def decayed_over_piece(
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    log_decay: Float[Tensor, "b t h decays"],
) -> tuple[Float[Tensor, "b h c m"], Float[Tensor, "b h c 1"]]:
    """Return A and K, a diagonal, of what positions do to the state: S' = K S + A."""
    k, v, log_decay = widened(k, v, log_decay)
    to_end = F.pad(log_decay[:, 1:], (0, 0, 0, 0, 0, 1)).flip(1).cumsum(1).flip(1)
    added = torch.einsum("bthc,bthm->bhcm", k * to_end.exp(), v)
    return added, log_decay.sum(1).exp().expand(*added.shape[:-1]).unsqueeze(-1)


def decayed_step(
    q: Float[Tensor, "b h c"],
    k: Float[Tensor, "b h c"],
    v: Float[Tensor, "b h m"],
    log_decay: Float[Tensor, "b h decays"],
    state: Float[Tensor, "b h c m"],
) -> tuple[Float[Tensor, "b h m"], Float[Tensor, "b h c m"]]:
    """Return the output of one position in the type of `v`, and the state that includes it."""
    dtype = v.dtype
    q, k, v, log_decay = widened(q, k, v, log_decay)
    with without_autocast(v):
        kept = state.to(v.dtype) * log_decay.exp().unsqueeze(-1)
        state = torch.addcmul(kept, k.unsqueeze(-1), v.unsqueeze(-2))
        output = torch.einsum("bhc,bhcm->bhm", q, state)
    return output.to(dtype), state


def middle_of(since_start: Float[Tensor, "*batch l c"]) -> Float[Tensor, "*batch 1 c"]:
    """Return the decay at a chunk's middle: relative to it, exponents are half as large."""
    return since_start[..., (since_start.shape[-2] - 1) // 2, None, :]


def between(log_decay: Float[Tensor, "*batch l"]) -> Float[Tensor, "*batch l l"]:
    """Return the decay from j to i: exp of the sum over j+1 ... i, and 0 for j > i.

    Each sum is of its own terms: differences of running sums lose what follows a hard decay.
    """
    at = torch.arange(log_decay.shape[-1], device=log_decay.device)
    later = at.unsqueeze(-1) > at
    sums = log_decay.unsqueeze(-1).where(later, 0).cumsum(-2)
    return sums.masked_fill(later.mT, -torch.inf).exp()
