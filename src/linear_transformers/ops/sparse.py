"""Factorised sparse attention: O(t sqrt(t)) where the stride is near sqrt(t).

Child et al. (2019), section 4.2-4.3, each head attending to the union of both of its parts:

    strided   the last l positions, and every l-th before: l, 2 l, 3 l ... back
    fixed     the query's block of l so far, and the last `summary` of each earlier block

Only these scores are computed. Queries may start later than keys: position 0 of the queries is
position `start` of the keys.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.chunks import join, split, with_previous
from linear_transformers.ops.precision import widened, without_autocast


def strided(
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b s h d"],
    v: Float[Tensor, "b s h m"],
    *,
    start: int,
    stride: int,
    summary: int = 0,
) -> Float[Tensor, "b t h m"]:
    """Attend to the last `stride` positions and to every `stride`-th before them."""
    first = start // stride
    with without_autocast(v):
        q_, k_, v_ = _blocks(q, k, v, start, stride)
        n = k_.shape[2]
        own = torch.arange(first, n, device=q.device)
        # The first block has none before it: these scores are masked below.
        recent_k, recent_v = (with_previous(x)[:, :, first:] for x in (k_, v_))
        recent = q_ @ recent_k.mT  # [b, h, n, l, 2 l]
        i = torch.arange(stride, device=q.device)
        distance = (i + stride).unsqueeze(1) - torch.arange(2 * stride, device=q.device)
        position = (own * stride).view(-1, 1, 1) + i.view(-1, 1) - distance
        hidden = (distance < 0) | (distance >= stride) | (position < 0)
        recent = recent.masked_fill(hidden, -torch.inf)
        # Phase by phase: position i of each block against position i of the blocks before.
        far = torch.einsum("bhnld,bhsld->bhnls", q_, k_)
        later = torch.arange(n, device=q.device) >= own.unsqueeze(1)
        far = far.masked_fill(later.unsqueeze(1), -torch.inf)
        weights = torch.cat([recent, far], dim=-1).softmax(-1)
        near, far = weights.split([2 * stride, n], dim=-1)
        out = near @ recent_v + torch.einsum("bhnls,bhslm->bhnlm", far, v_)
    return join(out, k.shape[1] - first * stride)[:, start - first * stride :].to(q.dtype)


def fixed(
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b s h d"],
    v: Float[Tensor, "b s h m"],
    *,
    start: int,
    stride: int,
    summary: int,
) -> Float[Tensor, "b t h m"]:
    """Attend to the query's block and to the last `summary` positions of each block before it."""
    first = start // stride
    with without_autocast(v):
        q_, k_, v_ = _blocks(q, k, v, start, stride)
        n = k_.shape[2]
        own = torch.arange(first, n, device=q.device)
        near = q_ @ k_[:, :, first:].mT
        future = torch.ones(stride, stride, dtype=torch.bool, device=q.device).triu(1)
        near = near.masked_fill(future, -torch.inf)
        summary_k, summary_v = (x[:, :, :, stride - summary :].flatten(2, 3) for x in (k_, v_))
        far = torch.einsum("bhnld,bhsd->bhnls", q_, summary_k)
        block = torch.arange(n, device=q.device).repeat_interleave(summary)
        far = far.masked_fill((block >= own.unsqueeze(1)).unsqueeze(1), -torch.inf)
        weights = torch.cat([near, far], dim=-1).softmax(-1)
        near, far = weights.split([stride, n * summary], dim=-1)
        out = near @ v_[:, :, first:] + torch.einsum("bhnls,bhsm->bhnlm", far, summary_v)
    return join(out, k.shape[1] - first * stride)[:, start - first * stride :].to(q.dtype)


def strided_positions(i: int, *, stride: int, summary: int = 0) -> Tensor:
    """Return the positions that position i attends to under `strided`, [s]."""
    far = range(i % stride, i - stride + 1, stride)
    return torch.tensor([*far, *range(max(0, i - stride + 1), i + 1)])


def fixed_positions(i: int, *, stride: int, summary: int) -> Tensor:
    """Return the positions that position i attends to under `fixed`, [s]."""
    own = i // stride * stride
    far = (j for end in range(stride, own + 1, stride) for j in range(end - summary, end))
    return torch.tensor([*far, *range(own, i + 1)])


def _blocks(q: Tensor, k: Tensor, v: Tensor, start: int, stride: int) -> tuple[Tensor, ...]:
    """Cut queries (scaled, from `start`'s block), keys and values into [b, h, n, l, width]."""
    (q,) = widened(q)
    k, v = k.to(q.dtype), v.to(q.dtype)
    q = F.pad(q * q.shape[-1] ** -0.5, (0, 0, 0, 0, start % stride, 0))
    return tuple(split(x, stride) for x in (q, k, v))
