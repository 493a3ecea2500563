"""What each mechanism computes, in O(t^2) or by its plain recurrence, as plainly as can be put."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_transformers import attention as backends
from linear_transformers.attention import CausalAttention
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.sparse import strided


def definition(attention: CausalAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The outputs [b, t, h, m] that the parallel form must give."""
    return DEFINITIONS[type(attention)](attention, q, k, v)


def linear(attention, q, k, v):
    phi = attention.feature_map
    return parallel(phi(q), phi(k), v, eps=attention.eps)[0]


def softmax(attention, q, k, v):
    return weighted(scores(q, k), before(q.shape[1]), v)


def additive(attention, q, k, v):
    pairs = (q.unsqueeze(2) + k.unsqueeze(1)).tanh()
    return weighted(torch.einsum("btshd,hd->bhts", pairs, attention.weight), before(q.shape[1]), v)


def window(attention, q, k, v):
    t = q.shape[1]
    near = before(t) & ~before(t).tril(-attention.window)
    return weighted(scores(q, k), near, v)


def sparse(attention, q, k, v):
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(q.shape[1])
    stride, summary = attention.numbers["stride"], attention.numbers["summary"]
    if attention.all_positions is strided:
        seen = (i - j < stride) | ((i - j) % stride == 0)
    else:
        seen = (i // stride == j // stride) | (j % stride >= stride - summary)
    return weighted(scores(q, k), seen & (j <= i), v)


def lsh(attention, q, k, v):
    """Each position against the `window` before it in its own bucket, position by position."""
    buckets, window = attention.hash(q).tolist(), attention.window

    def seen(b, h, r, i):
        mates = [j for j in range(i) if buckets[b][h][r][j] == buckets[b][h][r][i]]
        return mates[-window:]

    return hashed(q, v, len(buckets[0][0]), seen)


def reformer(attention, q, k, v, *, causal=True, lengths=None):
    """Own bucket, own chunk of the sorted sequence or the one before."""
    buckets, t = attention.hash(q).tolist(), q.shape[1]
    places = {}

    def place(b, h, r):
        if (b, h, r) not in places:
            count = t if lengths is None else int(lengths[b])
            order = sorted(range(count), key=lambda j: (buckets[b][h][r][j], j))
            places[b, h, r] = {j: rank // attention.chunk for rank, j in enumerate(order)}
        return places[b, h, r]

    def seen(b, h, r, i):
        chunk = place(b, h, r)
        return [
            j
            for j in chunk
            if j != i
            and i in chunk
            and buckets[b][h][r][j] == buckets[b][h][r][i]
            and chunk[j] in (chunk[i], chunk[i] - 1)
            and (j < i or not causal)
        ]

    return hashed(q, v, len(buckets[0][0]), seen)


def hashed(q, v, rounds, seen):
    """exp(q . k / sqrt(d)) of the pairs that meet, each as often as it does; alone, one's own."""
    keys = F.normalize(q, dim=-1)
    rows = []
    for b in range(len(q)):
        for h in range(q.shape[2]):
            for i in range(q.shape[1]):
                mates = [j for r in range(rounds) for j in seen(b, h, r, i)] or [i]
                weights = (keys[b, mates, h] @ q[b, i, h] / math.sqrt(q.shape[-1])).softmax(-1)
                rows.append(weights @ v[b, mates, h])
    return torch.stack(rows).unflatten(0, (len(q), q.shape[2], q.shape[1])).transpose(1, 2)


def retention(attention, q, k, v):
    head = torch.arange(q.shape[2], dtype=q.dtype)
    decay = (1 - 2.0 ** (-5 - head)).view(1, -1, 1, 1)

    def update(state, i):
        return decay * state + outer(k[:, i] / math.sqrt(k.shape[-1]), v[:, i])

    return recurrence(attention, q, v, update)


def gated(attention, q, k, v):
    decay = gate(attention.gate, k).sigmoid() ** (1 / 16)

    def update(state, i):
        kept = decay[:, i].unsqueeze(-1) * state
        return kept + outer(k[:, i] / math.sqrt(k.shape[-1]), v[:, i])

    return recurrence(attention, q, v, update)


def delta(attention, q, k, v):
    strength = gate(attention.strength, k).sigmoid()
    fading = hasattr(attention, "decay")
    decay = gate(attention.decay, k).sigmoid() if fading else torch.ones_like(strength)
    q, k = (F.silu(x) / F.silu(x).norm(dim=-1, keepdim=True) for x in (q, k))
    identity = torch.eye(k.shape[-1], dtype=k.dtype)

    def update(state, i):
        a, b = decay[:, i].unsqueeze(-1), strength[:, i].unsqueeze(-1)
        reflection = identity - b * outer(k[:, i], k[:, i])
        return a * (reflection @ state) + b * outer(k[:, i], v[:, i])

    return recurrence(attention, q, v, update)


def recurrence(attention, q, v, update):
    """State after state, each read by its query; outputs of unit root mean square."""
    state = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[-1], dtype=q.dtype)
    outputs = []
    for i in range(q.shape[1]):
        state = update(state, i)
        outputs.append((q[:, i].unsqueeze(-2) @ state).squeeze(-2))
    out = torch.stack(outputs, dim=1)
    return out / (out.square().mean(-1, keepdim=True) + 1e-5).sqrt() * attention.norm


def gate(module, k):
    return torch.einsum("bthd,hdw->bthw", k, module.weight) + module.bias


def outer(a, b):
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def scores(q, k):
    return torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])


def before(t):
    return torch.ones(t, t, dtype=torch.bool).tril()


def weighted(scores, seen, v):
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.einsum("bhts,bshm->bthm", weights, v)


DEFINITIONS = {
    backends.LinearAttention: linear,
    backends.SoftmaxAttention: softmax,
    backends.AdditiveAttention: additive,
    backends.SparseAttention: sparse,
    backends.WindowAttention: window,
    backends.LshAttention: lsh,
    backends.ReformerAttention: reformer,
    backends.RetentionAttention: retention,
    backends.GatedLinearAttention: gated,
    backends.DeltaAttention: delta,
    backends.GatedDeltaAttention: delta,
}
