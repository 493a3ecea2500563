# pyright: reportArgumentType=false, reportCallIssue=false
"""Causal linear attention in Triton, forward and backward: eqs. 8 and 9, and their gradients.

Sequences are cut into chunks that do not wait for one another:

    what each chunk adds to the state     S_n = sum of phi(k) v^T, Z_n = sum of phi(k)
    what is there before each chunk       running sums of those
    outputs                               (tril(Q K^T) V + Q S) / (tril(Q K^T) 1 + Q Z + eps)

The gradient goes the same three steps from the end, where g is the gradient of a weighted sum and
h that of the sum of weights under it: a chunk adds phi(q) g^T and h phi(q) to the state's gradient,
and the gradients of phi(q), phi(k) and v are products inside a chunk and with the states at both
of its ends. Nothing is kept of a position but its sum of weights.

Products take bfloat16 as it is, everything else as float32 (float16 in tf32, for its range;
float32 in three parts of tf32, for its precision), and accumulate in float32, as states do.
On a CPU this runs in Triton's interpreter: TRITON_INTERPRET=1, set before it is imported.
"""

import os
from collections.abc import Sequence
from typing import no_type_check  # what Triton compiles must not be wrapped by the tests' checks

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.fused import attend, operator, refuse
from linear_transformers.ops.recurrent import LinearState

CHUNK = 64  # positions
WIDEST = 64  # features or values in one product: wider heads take several
SCANNED = 1024  # numbers of the state that one program sums over the chunks
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


def triton_linear(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    *,
    eps: float,
    state: LinearState | None = None,
    elu: bool = False,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """The same function as `parallel`, on CUDA. See `cpp` for what the arguments are.

    Raises:
        ValueError: The tensors are on another device, or in float64.
    """
    refuse("triton", unavailable(v.device, v.dtype))
    return attend(_operator, q, k, v, eps=eps, state=state, elu=elu)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot run; None where they can."""
    if dtype == torch.float64:
        return "it has no float64"
    if device.type == "cuda" or INTERPRETED.value:
        return None
    return f"it is made for GPUs, and the tensors are on {device}"


@triton.jit
@no_type_check
def _place(chunks, heads):
    """Which chunk of which sequence and head a program is at; and their state among all."""
    program = tl.program_id(0).to(tl.int64)
    sequence = program // chunks
    return program % chunks, sequence // heads, sequence % heads, program


@triton.jit
@no_type_check
def _rows(data, rows, stride, columns, length, width):
    """Some columns of some positions, in float32; zero where there are none."""
    inside = (rows[:, None] < length) & (columns[None, :] < width)
    tile = tl.load(data + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)
    return tile.to(tl.float32)


@triton.jit
@no_type_check
def _keep_rows(data, tile, rows, stride, columns, length, width):
    inside = (rows[:, None] < length) & (columns[None, :] < width)
    tl.store(data + rows[:, None] * stride + columns[None, :], tile, mask=inside)


@triton.jit
@no_type_check
def elu_features(x):
    # Not a minimum: that of a NaN and 0 is 0 on a GPU.
    return tl.where(x > 0, x + 1, tl.exp(tl.where(x > 0, 0.0, x)))


@triton.jit
@no_type_check
def _phi(x, rows, columns, length, width, ELU: tl.constexpr):
    """Features; padding has none."""
    if ELU:
        x = elu_features(x)
        x = tl.where((rows[:, None] < length) & (columns[None, :] < width), x, 0.0)
    return x


@triton.jit
@no_type_check
def _state(data, place, x, y, C: tl.constexpr, M: tl.constexpr):
    """A part [x, y] of one state."""
    inside = (x[:, None] < C) & (y[None, :] < M)
    return tl.load(data + place * C * M + x[:, None] * M + y[None, :], mask=inside, other=0.0)


@triton.jit
@no_type_check
def _product(a, b, PRODUCT: tl.constexpr, PRECISION: tl.constexpr):
    a, b = a.to(PRODUCT), b.to(PRODUCT)
    if INTERPRETED:  # whose products know no bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
@no_type_check
def _sum_chunks(
    a, c, weight, h, kv_sums, k_sums, a_b, a_t, a_h, c_b, c_t, c_h, length, heads, chunks,
    C: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, L: tl.constexpr,
    ELU: tl.constexpr, GRADIENT: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What a chunk adds: phi(a) c^T and phi(a); to gradients, phi(a) (c/weight)^T and h phi(a)."""
    chunk, batch, head, place = _place(chunks, heads)
    rows = chunk * L + tl.arange(0, L)
    x = tl.program_id(1) * BC + tl.arange(0, BC)
    y = tl.program_id(2) * BM + tl.arange(0, BM)
    features = _rows(a + batch * a_b + head * a_h, rows, a_t, x, length, C)
    features = _phi(features, rows, x, length, C, ELU)
    values = _rows(c + batch * c_b + head * c_h, rows, c_t, y, length, M)
    total = features
    if GRADIENT:
        position = (batch * length + rows) * heads + head
        values /= tl.load(weight + position, mask=rows < length, other=1.0)[:, None]
        total *= tl.load(h + position, mask=rows < length, other=0.0)[:, None]
    sums = _product(tl.trans(features), values, PRODUCT, PRECISION)
    inside = (x[:, None] < C) & (y[None, :] < M)
    tl.store(kv_sums + place * C * M + x[:, None] * M + y[None, :], sums, mask=inside)
    if tl.program_id(2) == 0:
        tl.store(k_sums + place * C + x, tl.sum(total, 0), mask=x < C)


@triton.jit
@no_type_check
def _run_sums(
    sums, start, end, chunks, SIZE: tl.constexpr, BLOCK: tl.constexpr, REVERSED: tl.constexpr
):
    """Put in the place of what each chunk adds what is there before it; reversed, after it."""
    sequence = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < SIZE
    state = tl.load(start + sequence * SIZE + i, mask=inside, other=0.0)
    for n in range(chunks):
        chunk = n
        if REVERSED:
            chunk = chunks - 1 - n
        at = sums + (sequence * chunks + chunk) * SIZE + i
        added = tl.load(at, mask=inside, other=0.0)
        tl.store(at, state, mask=inside)
        state += added
    tl.store(end + sequence * SIZE + i, state, mask=inside)


@triton.jit
@no_type_check
def _outputs(
    q, k, v, kv_before, k_before, out, weight,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, length, heads, chunks, eps,
    C: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, L: tl.constexpr,
    ELU: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    chunk, batch, head, place = _place(chunks, heads)
    rows = chunk * L + tl.arange(0, L)
    y = tl.program_id(1) * BM + tl.arange(0, BM)
    weights = tl.zeros([L, L], tl.float32)
    sums = tl.zeros([L, BM], tl.float32)
    total = tl.zeros([L], tl.float32) + eps
    for first in range(0, C, BC):
        x = first + tl.arange(0, BC)
        queries = _rows(q + batch * q_b + head * q_h, rows, q_t, x, length, C)
        queries = _phi(queries, rows, x, length, C, ELU)
        keys = _rows(k + batch * k_b + head * k_h, rows, k_t, x, length, C)
        keys = _phi(keys, rows, x, length, C, ELU)
        weights += _product(queries, tl.trans(keys), PRODUCT, PRECISION)
        before = _state(kv_before, place, x, y, C, M)
        sums += _product(queries, before, tl.float32, PRECISION)
        before = tl.load(k_before + place * C + x, mask=x < C, other=0.0)
        total += tl.sum(queries * before[None, :], 1)
    weights = tl.where(rows[:, None] >= rows[None, :], weights, 0.0)
    values = _rows(v + batch * v_b + head * v_h, rows, v_t, y, length, M)
    sums += _product(weights, values, PRODUCT, PRECISION)
    total += tl.sum(weights, 1)
    first = (batch * length * heads + head) * M
    _keep_rows(out + first, sums / total[:, None], rows, heads * M, y, length, M)
    if tl.program_id(1) == 0:
        position = (batch * length + rows) * heads + head
        tl.store(weight + position, total, mask=rows < length)


@triton.jit
@no_type_check
def _weight_gradients(
    d_out, out, weight, h, length, heads, chunks,
    M: tl.constexpr, BM: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """h: the gradient of each position's sum of weights."""
    chunk, batch, head, _ = _place(chunks, heads)
    rows = chunk * L + tl.arange(0, L)
    first = (batch * length * heads + head) * M
    total = tl.zeros([L], tl.float32)
    for block in range(0, M, BM):
        y = block + tl.arange(0, BM)
        d_outputs = _rows(d_out + first, rows, heads * M, y, length, M)
        total += tl.sum(d_outputs * _rows(out + first, rows, heads * M, y, length, M), 1)
    position = (batch * length + rows) * heads + head
    share = tl.load(weight + position, mask=rows < length, other=1.0)
    tl.store(h + position, -total / share, mask=rows < length)


@triton.jit
@no_type_check
def _query_and_key_gradients(
    q, k, v, d_out, weight, h, kv_before, k_before, d_kv_after, d_k_after, d_q, d_k,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, length, heads, chunks,
    C: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, L: tl.constexpr,
    ELU: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    chunk, batch, head, place = _place(chunks, heads)
    rows = chunk * L + tl.arange(0, L)
    x = tl.program_id(1) * BC + tl.arange(0, BC)
    position = (batch * length + rows) * heads + head
    share = tl.load(weight + position, mask=rows < length, other=1.0)
    d_total = tl.load(h + position, mask=rows < length, other=0.0)
    d_weights = tl.zeros([L, L], tl.float32)
    d_queries = tl.zeros([L, BC], tl.float32)
    d_keys = tl.zeros([L, BC], tl.float32)
    for block in range(0, M, BM):
        y = block + tl.arange(0, BM)
        values = _rows(v + batch * v_b + head * v_h, rows, v_t, y, length, M)
        first = (batch * length * heads + head) * M
        d_sums = _rows(d_out + first, rows, heads * M, y, length, M) / share[:, None]
        d_weights += _product(d_sums, tl.trans(values), PRODUCT, PRECISION)
        before = tl.trans(_state(kv_before, place, x, y, C, M))
        d_queries += _product(d_sums, before, tl.float32, PRECISION)
        after = tl.trans(_state(d_kv_after, place, x, y, C, M))
        d_keys += _product(values, after, tl.float32, PRECISION)
    d_weights = tl.where(rows[:, None] >= rows[None, :], d_weights + d_total[:, None], 0.0)
    raw_queries = _rows(q + batch * q_b + head * q_h, rows, q_t, x, length, C)
    queries = _phi(raw_queries, rows, x, length, C, ELU)
    raw_keys = _rows(k + batch * k_b + head * k_h, rows, k_t, x, length, C)
    keys = _phi(raw_keys, rows, x, length, C, ELU)
    before = tl.load(k_before + place * C + x, mask=x < C, other=0.0)
    after = tl.load(d_k_after + place * C + x, mask=x < C, other=0.0)
    d_queries += _product(d_weights, keys, PRODUCT, PRECISION)
    d_queries += d_total[:, None] * before[None, :]
    d_keys += _product(tl.trans(d_weights), queries, PRODUCT, PRECISION) + after[None, :]
    if ELU:  # where x <= 0, elu + 1 is its own derivative
        d_queries *= tl.where(raw_queries > 0, 1.0, queries)
        d_keys *= tl.where(raw_keys > 0, 1.0, keys)
    first = (batch * length * heads + head) * C
    _keep_rows(d_q + first, d_queries, rows, heads * C, x, length, C)
    _keep_rows(d_k + first, d_keys, rows, heads * C, x, length, C)


@triton.jit
@no_type_check
def _value_gradients(
    q, k, d_out, weight, d_kv_after, d_v,
    q_b, q_t, q_h, k_b, k_t, k_h, length, heads, chunks,
    C: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, L: tl.constexpr,
    ELU: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    chunk, batch, head, place = _place(chunks, heads)
    rows = chunk * L + tl.arange(0, L)
    y = tl.program_id(1) * BM + tl.arange(0, BM)
    weights = tl.zeros([L, L], tl.float32)
    d_values = tl.zeros([L, BM], tl.float32)
    for block in range(0, C, BC):
        x = block + tl.arange(0, BC)
        queries = _rows(q + batch * q_b + head * q_h, rows, q_t, x, length, C)
        queries = _phi(queries, rows, x, length, C, ELU)
        keys = _rows(k + batch * k_b + head * k_h, rows, k_t, x, length, C)
        keys = _phi(keys, rows, x, length, C, ELU)
        weights += _product(queries, tl.trans(keys), PRODUCT, PRECISION)
        after = _state(d_kv_after, place, x, y, C, M)
        d_values += _product(keys, after, tl.float32, PRECISION)
    weights = tl.where(rows[:, None] >= rows[None, :], weights, 0.0)
    position = (batch * length + rows) * heads + head
    share = tl.load(weight + position, mask=rows < length, other=1.0)
    first = (batch * length * heads + head) * M
    d_sums = _rows(d_out + first, rows, heads * M, y, length, M) / share[:, None]
    d_values += _product(tl.trans(weights), d_sums, PRODUCT, PRECISION)
    _keep_rows(d_v + first, d_values, rows, heads * M, y, length, M)


class _Launch:
    """The sizes of one call, and what its programs have in common."""

    def __init__(self, q: Tensor, v: Tensor, elu: bool):
        self.batch, self.length, self.heads, self.c = q.shape
        self.m = v.shape[-1]
        self.chunks = triton.cdiv(self.length, CHUNK)
        self.programs = self.batch * self.heads * self.chunks
        bc, bm = (min(WIDEST, max(16, triton.next_power_of_2(x))) for x in (self.c, self.m))
        self.blocks = triton.cdiv(self.c, bc), triton.cdiv(self.m, bm)
        # Features of bfloat16 values may have come in float32, through another map.
        product = tl.bfloat16 if v.dtype == torch.bfloat16 else tl.float32
        precision = "tf32x3" if v.dtype == torch.float32 else "tf32"
        self.sizes = {"M": self.m, "BM": bm, "L": CHUNK}
        self.shared = {
            **self.sizes, "C": self.c, "BC": bc, "ELU": elu, "PRODUCT": product,
            "PRECISION": precision,
        }  # fmt: skip
        self.counts = self.length, self.heads, self.chunks
        self.like = q.new_empty(0, dtype=torch.float32)

    def states(self, a, c, weight, h, start, *, reverse: bool) -> tuple[Tensor, ...]:
        """Running sums at the chunks' ends, and those at the end of the sequence."""
        sequences = self.batch * self.heads
        kv_sums = self.like.new_empty(sequences, self.chunks, self.c, self.m)
        k_sums = self.like.new_empty(sequences, self.chunks, self.c)
        _sum_chunks[(self.programs, *self.blocks)](
            a, c, weight, h, kv_sums, k_sums, *a.stride()[:3], *c.stride()[:3], *self.counts,
            GRADIENT=reverse, **self.shared,
        )  # fmt: skip
        ends = tuple(torch.empty_like(x) for x in start)
        for sums, begin, end in zip((kv_sums, k_sums), start, ends, strict=True):
            size = begin[0, 0].numel()
            block = min(SCANNED, triton.next_power_of_2(size))
            _run_sums[(sequences, triton.cdiv(size, block))](
                sums, begin, end, self.chunks, SIZE=size, BLOCK=block, REVERSED=reverse
            )
        return kv_sums, k_sums, *ends


def _forward(given: Sequence[Tensor], eps: float, elu: bool, results: Sequence[Tensor]) -> None:
    q, k, v, *start = _readable(given)
    out, weight, kv_end, k_end = results
    launch = _Launch(q, v, elu)
    kv_before, k_before, *ends = launch.states(k, v, None, None, start, reverse=False)
    kv_end.copy_(ends[0])
    k_end.copy_(ends[1])
    _outputs[(launch.programs, launch.blocks[1])](
        q, k, v, kv_before, k_before, out, weight,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *launch.counts, eps, **launch.shared,
    )  # fmt: skip


def _backward(given: Sequence[Tensor], elu: bool, gradients: Sequence[Tensor]) -> None:
    q, k, v, kv_start, k_start, out, weight, d_out, *d_end = _readable(given)
    d_q, d_k, d_v, *d_start = gradients
    launch = _Launch(q, v, elu)
    h = torch.empty_like(weight)
    _weight_gradients[(launch.programs,)](d_out, out, weight, h, *launch.counts, **launch.sizes)
    before = launch.states(k, v, None, None, (kv_start, k_start), reverse=False)[:2]
    *after, kv, ks = launch.states(q, d_out, weight, h, d_end, reverse=True)
    for gradient, found in zip(d_start, (kv, ks), strict=True):
        gradient.copy_(found)
    q_and_k = *q.stride()[:3], *k.stride()[:3]
    _query_and_key_gradients[(launch.programs, launch.blocks[0])](
        q, k, v, d_out, weight, h, *before, *after, d_q, d_k, *q_and_k, *v.stride()[:3],
        *launch.counts, **launch.shared,
    )  # fmt: skip
    _value_gradients[(launch.programs, launch.blocks[1])](
        q, k, d_out, weight, after[0], d_v, *q_and_k, *launch.counts, **launch.shared
    )


def _readable(given: Sequence[Tensor]) -> list[Tensor]:
    """q, k and v as they lie, if their rows have no gaps; everything else dense."""
    views = [x if x.stride(-1) == 1 else x.contiguous() for x in given[:3]]
    return views + [x.contiguous() for x in given[3:]]


_operator = operator("triton_causal", _forward, _backward)
