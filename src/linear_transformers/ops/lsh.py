"""Attention among vectors that fall into one bucket, found by sorting: O(t) for fixed sizes.

Kitaev, Kaiser and Levskaya (2020), "Reformer". Queries are keys: k_j = q_j / |q_j|. Vectors are
hashed by random rotations, in several rounds. The rounds' sums are added up: a pair that meets in
two rounds counts twice. A position attends to itself only when it is alone.

`chunked` is the paper's form: sorted by bucket and cut into chunks, each position attends to
those of its bucket in its own chunk and the one before. Where the cuts fall depends on the whole
sequence: even with a causal mask, earlier outputs change when later positions do.

`windowed` is exactly causal: each position attends to the `window` positions before it in its
own bucket. The state is bounded: the last `window` positions of every bucket.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linear_transformers.ops.chunks import with_previous
from linear_transformers.ops.precision import accumulation_dtype, widened, without_autocast

# The score of a position with itself: its weight is 0 beside any other score, and 1 alone.
ALONE = -1e5


class LshState(NamedTuple):
    """The last `window` keys and values of every bucket, oldest first, right-aligned.

    `counts` is the number of entries of each bucket, `length` the number of positions read so far.
    """

    keys: Float[Tensor, "b h a buckets w d"]
    values: Float[Tensor, "b h a buckets w m"]
    counts: Int[Tensor, "b h a buckets"]
    length: int


def buckets_of(
    x: Float[Tensor, "b t h d"], planes: Float[Tensor, "h a d g"]
) -> Int[Tensor, "b h a t"]:
    """Return the nearest of the corners +-e_i after a random rotation: 2 g buckets."""
    dtype = accumulation_dtype(x.dtype)
    with without_autocast(x):
        rotated = torch.einsum("bthd,hadg->bhatg", x.to(dtype), planes.to(dtype))
    return torch.cat([rotated, -rotated], dim=-1).argmax(-1)


def windowed(
    q: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h m"],
    buckets: Int[Tensor, "b h a t"],
    *,
    window: int,
    state: LshState | None = None,
) -> Float[Tensor, "b t h m"]:
    """Attend from each position to the last `window` of its bucket, including those in `state`."""
    dtype, length = v.dtype, q.shape[1]
    with without_autocast(v):
        outputs = _attend(*_with_past(q, v, buckets, state), size=window, causal=True, reach=window)
    return outputs[..., -length:, :].transpose(1, 2).to(dtype)


def remember(
    q: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h m"],
    buckets: Int[Tensor, "b h a t"],
    state: LshState,
) -> LshState:
    """Return the state after further positions: the last `window` of each bucket."""
    num_buckets, window = state.keys.shape[3:5]
    _, keys, values, buckets = _with_past(q, v, buckets, state)
    buckets, order = buckets.sort(dim=-1, stable=True)
    # Empty entries are in an extra bucket, `num_buckets`.
    members = torch.zeros(*buckets.shape[:3], num_buckets + 1, dtype=torch.long, device=q.device)
    members.scatter_add_(-1, buckets, torch.ones_like(buckets))
    ends = members.cumsum(-1).gather(-1, buckets)
    from_end = ends - 1 - torch.arange(buckets.shape[-1], device=q.device)
    nowhere = num_buckets * window
    slot = buckets * window + window - 1 - from_end
    slot = slot.where((from_end < window) & (buckets < num_buckets), nowhere).unsqueeze(-1)

    def kept(x: Tensor, like: Tensor) -> Tensor:
        empty = x.new_zeros(*x.shape[:3], nowhere + 1, x.shape[-1])
        rows = empty.scatter(-2, slot.expand_as(x), _take(x, order))[..., :nowhere, :]
        return rows.unflatten(-2, (num_buckets, window)).to(like.dtype)

    counts = members[..., :num_buckets].clamp(max=window)
    return LshState(
        kept(keys, state.keys), kept(values, state.values), counts, state.length + q.shape[1]
    )


def windowed_step(
    q: Float[Tensor, "b h d"],
    v: Float[Tensor, "b h m"],
    buckets: Int[Tensor, "b h a"],
    state: LshState,
) -> tuple[Float[Tensor, "b h m"], LshState]:
    """Return the output of one position, and the state that includes it."""
    dtype, window = v.dtype, state.keys.shape[-2]
    q, v = widened(q, v)
    row = buckets[..., None, None, None]
    keys, values = (
        x.take_along_dim(row, dim=3).squeeze(3).to(q.dtype) for x in (state.keys, state.values)
    )
    counts = state.counts.gather(-1, buckets.unsqueeze(-1))
    key = F.normalize(q, dim=-1)
    with without_autocast(v):
        scores = torch.einsum("bhd,bhawd->bhaw", q, keys) * q.shape[-1] ** -0.5
        empty = torch.arange(window, device=q.device) < window - counts
        scores = F.pad(scores.masked_fill(empty, -torch.inf), (0, 1), value=ALONE)
        new_values = v[:, :, None, None].expand(-1, -1, keys.shape[2], -1, -1)
        outputs, total = _attended(scores.unsqueeze(-2), torch.cat([values, new_values], dim=-2))
        output = _combine(outputs, total).squeeze(-2)
    new_keys = key[:, :, None, None].expand(-1, -1, keys.shape[2], -1, -1)
    state = LshState(
        _replaced(state.keys, row, torch.cat([keys[..., 1:, :], new_keys], dim=-2)),
        _replaced(state.values, row, torch.cat([values[..., 1:, :], new_values], dim=-2)),
        state.counts.scatter(-1, buckets.unsqueeze(-1), (counts + 1).clamp(max=window)),
        state.length + 1,
    )
    return output.to(dtype), state


def chunked(
    q: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h m"],
    buckets: Int[Tensor, "b h a t"],
    *,
    chunk: int,
    causal: bool,
    mask: Bool[Tensor, "b t"] | None = None,
) -> Float[Tensor, "b t h m"]:
    """Attend as the paper does, with or without its causal mask. Padding is ignored."""
    dtype, rounds = v.dtype, buckets.shape[2]
    if mask is not None:
        q, v = (x.where(mask[..., None, None], 0) for x in (q, v))  # 0 times NaN is NaN
        last = torch.iinfo(buckets.dtype).max  # sorted last, padding moves no chunk
        buckets = buckets.masked_fill(~mask[:, None, None], last)
    queries, values = (_heads_first(x, rounds) for x in widened(q, v))
    keys = F.normalize(queries, dim=-1)
    with without_autocast(v):
        outputs = _attend(
            queries, keys, values, buckets, size=chunk, causal=causal, reach=2 * chunk
        )
    return outputs.transpose(1, 2).to(dtype)


def _attend(
    queries: Float[Tensor, "b h a t d"],
    keys: Float[Tensor, "b h a t d"],
    values: Float[Tensor, "b h a t m"],
    buckets: Int[Tensor, "b h a t"],
    *,
    size: int,
    causal: bool,
    reach: int,
) -> Float[Tensor, "b h t m"]:
    """Attend among the vectors of each bucket, and average the rounds.

    Sorted by bucket, they are cut into chunks, each of which sees itself and the one before.

    Args:
        queries: The queries.
        keys: The keys.
        values: The values.
        buckets: The bucket of each.
        size: The size of a chunk.
        causal: Whether later vectors are hidden.
        reach: How many places back each sees at most.
    """
    length = buckets.shape[-1]
    # Stable: the vectors of one bucket stay in their order.
    buckets, order = buckets.sort(dim=-1, stable=True)
    queries, keys, values = (_take(x, order) for x in (queries, keys, values))
    scaled = queries * queries.shape[-1] ** -0.5
    scores = _chunks(scaled, size) @ with_previous(_chunks(keys, size)).mT

    own = F.pad(buckets, (0, -length % size), value=-1).unflatten(-1, (-1, size))
    seen = torch.cat([F.pad(own, (0, 0, 1, -1), value=-1), own], dim=-1)
    places = torch.arange(2 * size, device=scores.device)
    back = places[size:].unsqueeze(1) - places  # by how many a query is after what it sees
    outside = back > reach
    if causal:
        outside = outside | (back < 0)
    hidden = (own.unsqueeze(-1) != seen.unsqueeze(-2)) | outside
    scores.masked_fill_(hidden, -torch.inf).masked_fill_(back == 0, ALONE)
    outputs, total = _attended(scores, with_previous(_chunks(values, size)))

    outputs, total = outputs.flatten(3, 4)[..., :length, :], total.flatten(3, 4)[..., :length]
    home = order.argsort(-1)
    return _combine(_take(outputs, home), total.gather(-1, home))


def _with_past(
    q: Tensor, v: Tensor, buckets: Tensor, state: LshState | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys, values and buckets of each round, after the entries of the state.

    These entries have zero queries, whose outputs are dropped.
    """
    queries, values = (_heads_first(x, buckets.shape[2]) for x in widened(q, v))
    keys = F.normalize(queries, dim=-1)
    if state is None or state.length == 0:
        return queries, keys, values, buckets
    remembered = (x.flatten(3, 4).to(keys.dtype) for x in (state.keys, state.values))
    keys, values = (
        torch.cat(pair, dim=-2) for pair in zip(remembered, (keys, values), strict=True)
    )
    queries = F.pad(queries, (0, 0, keys.shape[-2] - queries.shape[-2], 0))
    return queries, keys, values, torch.cat([_buckets_of_state(state), buckets], dim=-1)


def _buckets_of_state(state: LshState) -> Int[Tensor, "b h a s"]:
    """Return the bucket of each entry of the state; an empty one has the bucket `num_buckets`."""
    num_buckets, window = state.keys.shape[3:5]
    device = state.keys.device
    bucket = torch.arange(num_buckets, device=device).unsqueeze(1).expand(-1, window)
    empty = torch.arange(window, device=device) < window - state.counts.unsqueeze(-1)
    return bucket.where(~empty, num_buckets).flatten(3, 4)


def _attended(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of values, and the logarithms of their sums of weights, exp(score).

    The logarithm is that of the greatest weight of all, which softmax has: two passes fewer over
    the scores than logsumexp takes, and two fewer backward.
    """
    weights = scores.softmax(-1)
    greatest = scores.argmax(-1, keepdim=True)
    total = scores.gather(-1, greatest) - weights.gather(-1, greatest).log()
    return weights @ values, total.squeeze(-1)


def _chunks(x: Float[Tensor, "b h a t d"], size: int) -> Float[Tensor, "b h a n l d"]:
    return F.pad(x, (0, 0, 0, -x.shape[-2] % size)).unflatten(-2, (-1, size))


def _combine(
    outputs: Float[Tensor, "b h a t m"], total: Float[Tensor, "b h a t"]
) -> Float[Tensor, "b h t m"]:
    """Average the rounds' means, each weighted by its sum of weights."""
    return (outputs * total.softmax(2).unsqueeze(-1)).sum(2)


def _heads_first(x: Float[Tensor, "b t h d"], rounds: int) -> Float[Tensor, "b h a t d"]:
    return x.transpose(1, 2).unsqueeze(2).expand(-1, -1, rounds, -1, -1)


def _take(x: Float[Tensor, "b h a t d"], order: Int[Tensor, "b h a s"]) -> Tensor:
    """Return the vectors in this order: whole rows, faster than gathering numbers."""
    first = torch.arange(order[..., 0].numel(), device=x.device) * x.shape[-2]
    rows = first.view(*order.shape[:-1], 1) + order
    taken = x.reshape(-1, x.shape[-1]).index_select(0, rows.flatten())
    return taken.view(*order.shape, x.shape[-1])


def _replaced(x: Tensor, row: Tensor, block: Tensor) -> Tensor:
    index = row.expand(-1, -1, -1, 1, *block.shape[-2:])
    return x.scatter(3, index, block.unsqueeze(3).to(x.dtype))
