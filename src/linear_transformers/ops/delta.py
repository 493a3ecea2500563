"""The delta rule: a key corrects the value it already recalls, instead of adding to it.

    S_i = (I - b_i k_i k_i^T) diag(a_i) S_(i-1) + b_i k_i v_i^T,   output_i = S_i^T q_i

Schlag, Irie and Schmidhuber (2021), eq. 24, with a = 1; Yang, Kautz and Hatamizadeh (2025,
"Gated Delta Networks"), eq. 10, with one a for each head; Kimi Team (2025, "Kimi Linear"), eq. 1,
with one for each feature. Keys have length 1 and 0 <= b <= 1, so nothing grows.
`delta_step` is the recurrence itself, and what `delta` must agree with.

Inside a chunk the product of the reflections is kept in its WY form (Bischof and Van Loan, 1987;
Yang et al., 2024, "Parallelizing Linear Transformers with the Delta Rule"): with G_ij the decay
from j to i, inside the products where it differs between features, and g_i the one since the
chunk's start,

    T = (I + strictly lower part of diag(b) (K K^T * G))^-1
    U = T diag(b) (V - diag(g) K S)          what each position writes
    output = diag(g) Q S + (Q K^T * G) U     lower part with the diagonal
    S' = g_l S + sum of (g_l / g_j) k_j u_j^T
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.chunks import in_segments, join, split
from linear_transformers.ops.decayed import between, middle_of
from linear_transformers.ops.precision import widened, without_autocast


def delta(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    strength: Float[Tensor, "b t h 1"],
    log_decay: Float[Tensor, "b t h decays"],
    *,
    state: Float[Tensor, "b h c m"] | None = None,
    chunk_size: int = 32,
) -> tuple[Float[Tensor, "b t h m"], Float[Tensor, "b h c m"]]:
    """Compute all positions: one triangular system a chunk, the state between them.

    Args:
        q: The queries.
        k: The keys, of length 1.
        v: The values.
        strength: The strength b of the correction, from 0 to 1.
        log_decay: The logarithms of a, not above 0: one for each feature, or one for all (a last
            dimension of 1). Where there are several, the sum over any half of a chunk must
            stay above -80, or float32 overflows.
        state: The past, empty if absent. Left unmodified.
        chunk_size: The positions of a chunk. Only speed and that limit depend on it.

    Returns:
        The outputs in the type of `v`, and the state after the last position.
    """
    inputs = q, k, v, strength, log_decay
    return in_segments(segment, inputs, state=state, chunk_size=chunk_size)


def segment(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    log_decay: Tensor,
    *,
    state: Float[Tensor, "b h c m"] | None,
    chunk_size: int,
) -> tuple[Float[Tensor, "b t h m"], Float[Tensor, "b h c m"]]:
    """Compute a segment: all its systems at once, then chunk after chunk."""
    length = q.shape[1]
    past = q.new_zeros(len(q), *q.shape[2:], v.shape[3]) if state is None else state.to(q.dtype)
    # Padding has no key, strength or decay: it leaves the state as it is.
    size = max(1, min(chunk_size, length))
    q, k, v, strength, log_decay = (split(x, size) for x in (q, k, v, strength, log_decay))
    since_start = log_decay.cumsum(-2)
    kept = since_start.exp()
    if log_decay.shape[-1] == 1:
        decay = between(log_decay[..., 0])
        to_end = decay[..., -1, :, None]
        similar, weights = (k @ k.mT) * decay, (q @ k.mT) * decay
    else:
        to_end = (since_start[..., -1:, :] - since_start).exp()
        middle = middle_of(since_start)
        relative, grown = (since_start - middle).exp(), (k * (middle - since_start).exp()).mT
        similar, weights = (relative * k) @ grown, ((relative * q) @ grown).tril()
    # The solver adds the unit diagonal. Above it, `similar` may have overflowed.
    system = strength * similar.tril(-1)
    right = torch.cat([strength * v, strength * kept * k], dim=-1)
    values, keys = torch.linalg.solve_triangular(
        system, right, upper=False, unitriangular=True
    ).split([v.shape[-1], k.shape[-1]], dim=-1)
    read, remembered, whole = kept * q, (k * to_end).mT, kept[..., -1:, :].mT
    outputs = []
    # unbind, not an index: the gradient of each index is as large as all chunks together.
    chunks = (values, keys, read, weights, remembered, whole)
    for u, w, r, a, k_i, g in zip(*(x.unbind(2) for x in chunks), strict=True):
        written = u - w @ past
        outputs.append(r @ past + a @ written)
        past = g * past + k_i @ written
    return join(torch.stack(outputs, dim=2), length), past


def delta_over_piece(
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    strength: Float[Tensor, "b t h 1"],
    log_decay: Float[Tensor, "b t h decays"],
) -> tuple[Float[Tensor, "b h c m"], Float[Tensor, "b h c c"]]:
    """Return A and K, a matrix, of what positions do to the state: S' = K S + A.

    Both are columns of one state: A of one that begins empty, K of one that begins as the
    identity and is given no values.
    """
    k, v, strength, log_decay = widened(k, v, strength, log_decay)
    columns = torch.cat([v, torch.zeros_like(k)], dim=-1)
    identity = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    start = F.pad(identity, (v.shape[-1], 0)).expand(len(k), k.shape[2], -1, -1)
    _, state = delta(k, k, columns, strength, log_decay, state=start)
    added, kept = state.split([v.shape[-1], k.shape[-1]], dim=-1)
    return added, kept


def delta_step(
    q: Float[Tensor, "b h c"],
    k: Float[Tensor, "b h c"],
    v: Float[Tensor, "b h m"],
    strength: Float[Tensor, "b h 1"],
    log_decay: Float[Tensor, "b h decays"],
    state: Float[Tensor, "b h c m"],
) -> tuple[Float[Tensor, "b h m"], Float[Tensor, "b h c m"]]:
    """Return the output of one position in the type of `v`, and the state that includes it."""
    dtype = v.dtype
    q, k, v, strength, log_decay = widened(q, k, v, strength, log_decay)
    with without_autocast(v):
        kept = state.to(v.dtype) * log_decay.exp().unsqueeze(-1)
        recalled = torch.einsum("bhc,bhcm->bhm", k, kept)
        correction = strength * (v - recalled)
        state = torch.addcmul(kept, k.unsqueeze(-1), correction.unsqueeze(-2))
        output = torch.einsum("bhc,bhcm->bhm", q, state)
    return output.to(dtype), state
