# pyright: reportArgumentType=false, reportCallIssue=false
"""Causal linear attention in Triton, forward and backward: eqs. 8 to 15 of Katharopoulos et al.
(2020).

Everything is one primitive, the causal product that cpp_linear.cpp describes, here by chunks of
positions with the state in registers:

    outputs of a chunk = tril(A B^T) C + A S,    S = S_0 + sum of B^T C over the chunks before it

    sums of values     (phi(q), phi(k), v), and the sum of weights beside them
    d phi(q)           ([g, h], [v, 1], phi(k))
    d phi(k)           ([v, 1], [g, h], phi(q))   from the end
    d v                (phi(k), phi(q), g)        from the end

where g and h are the gradients of a sum of values and of the sum of weights under it. A program
takes some columns of C of one head of one sequence. Where there are too few sequences and heads
to keep a GPU busy, each is cut into segments that run in parallel: what each of them adds to the
state is summed first. Nothing is kept of a position but its sum of weights.

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
from torch import Tensor

from linear_transformers.kernels.operator import operator, refuse, too_wide

WIDEST = 256  # features or values of a head
CHUNK = 64  # positions; half as many of a wide head, or in float32: registers are few
NARROW = 64  # features or values
HELD = 8192  # numbers of a state that a program holds
PROGRAMS = 1024  # enough to keep a GPU of some 130 processors busy: a guess, not measured
SCANNED = 1024  # numbers of the state that one program sums over the segments
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
OUTPUTS, D_QUERIES, D_KEYS, D_VALUES = (tl.constexpr(i) for i in range(4))


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernels cannot run, or None."""
    if dtype == torch.float64:
        return "it has no float64"
    if device.type == "cuda" or INTERPRETED.value:
        return None
    return f"it is made for GPUs, and the tensors are on {device}"


@triton.jit
@no_type_check
def _place(segments, heads):
    """Return a program's segment, sequence and head, and its number among all."""
    program = tl.program_id(0).to(tl.int64)
    sequence = program // segments
    return program % segments, sequence // heads, sequence % heads, program


@triton.jit
@no_type_check
def _rows(data, rows, stride, columns, length, width):
    """Load some columns of some positions, in float32; zero outside."""
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
    """Return features; those of padding are zero."""
    if ELU:
        x = elu_features(x)
        x = tl.where((rows[:, None] < length) & (columns[None, :] < width), x, 0.0)
    return x


@triton.jit
@no_type_check
def _product(a, b, PRODUCT: tl.constexpr, PRECISION: tl.constexpr):
    a, b = a.to(PRODUCT), b.to(PRODUCT)
    if INTERPRETED:  # the interpreter's products have no bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
@no_type_check
def _sum_segments(
    a, c, weight, h, kv_sums, k_sums, a_b, a_t, a_h, c_b, c_t, c_h, length, heads, segments, chunks,
    C: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, L: tl.constexpr,
    ELU: tl.constexpr, GRADIENT: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum phi(a)^T c and phi(a) over a segment; of gradients, phi(a)^T (c/weight) and h phi(a)."""
    segment, batch, head, place = _place(segments, heads)
    x = tl.program_id(1) * BC + tl.arange(0, BC)
    y = tl.program_id(2) * BM + tl.arange(0, BM)
    state = tl.zeros([BC, BM], tl.float32)
    total = tl.zeros([BC], tl.float32)
    for n in range(chunks):
        rows = (segment * chunks + n) * L + tl.arange(0, L)
        features = _rows(a + batch * a_b + head * a_h, rows, a_t, x, length, C)
        features = _phi(features, rows, x, length, C, ELU)
        values = _rows(c + batch * c_b + head * c_h, rows, c_t, y, length, M)
        counted = features
        if GRADIENT:
            position = (batch * length + rows) * heads + head
            values /= tl.load(weight + position, mask=rows < length, other=1.0)[:, None]
            counted *= tl.load(h + position, mask=rows < length, other=0.0)[:, None]
        state += _product(tl.trans(features), values, PRODUCT, PRECISION)
        total += tl.sum(counted, 0)
    inside = (x[:, None] < C) & (y[None, :] < M)
    tl.store(kv_sums + place * C * M + x[:, None] * M + y[None, :], state, mask=inside)
    if tl.program_id(2) == 0:
        tl.store(k_sums + place * C + x, total, mask=x < C)


@triton.jit
@no_type_check
def _run_sums(
    sums, start, end, segments, SIZE: tl.constexpr, BLOCK: tl.constexpr, REVERSED: tl.constexpr
):
    """Replace each segment's sums by the state before it; reversed, after it."""
    sequence = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < SIZE
    state = tl.load(start + sequence * SIZE + i, mask=inside, other=0.0)
    for n in range(segments):
        segment = n
        if REVERSED:
            segment = segments - 1 - n
        at = sums + (sequence * segments + segment) * SIZE + i
        added = tl.load(at, mask=inside, other=0.0)
        tl.store(at, state, mask=inside)
        state += added
    tl.store(end + sequence * SIZE + i, state, mask=inside)


@triton.jit
@no_type_check
def _weight_gradients(
    d_out, out, weight, h, positions, M: tl.constexpr, BM: tl.constexpr, L: tl.constexpr
):
    """Compute h, the gradient of each position's sum of weights."""
    rows = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    y = tl.arange(0, BM)
    d_outputs = _rows(d_out, rows, M, y, positions, M)
    total = tl.sum(d_outputs * _rows(out, rows, M, y, positions, M), 1)
    share = tl.load(weight + rows, mask=rows < positions, other=1.0)
    tl.store(h + rows, -total / share, mask=rows < positions)


@triton.jit
@no_type_check
def _scan(
    q, k, v, d_out, weight, h, kv_start, k_start, out, kv_end, k_end,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, length, heads, segments, chunks, eps,
    C: tl.constexpr, M: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, L: tl.constexpr,
    WANTED: tl.constexpr, ENDS: tl.constexpr, ELU: tl.constexpr, PRODUCT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the primitive for one of four results; A, B and the state are HEIGHT high."""
    of_features: tl.constexpr = (WANTED == D_QUERIES) | (WANTED == D_KEYS)  # a gradient
    backwards: tl.constexpr = (WANTED == D_KEYS) | (WANTED == D_VALUES)
    segment, batch, head, place = _place(segments, heads)
    q += batch * q_b + head * q_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    d_out += (batch * length * heads + head) * M
    x = tl.arange(0, HEIGHT)
    y = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    if of_features:  # the state lies turned: values down, features across
        inside = (x[:, None] < M) & (y[None, :] < C)
        at = place * C * M + y[None, :] * M + x[:, None]
        below = tl.load(k_start + place * C + y, mask=y < C, other=0.0)
    else:
        inside = (x[:, None] < C) & (y[None, :] < M)
        at = place * C * M + x[:, None] * M + y[None, :]
        if WANTED == OUTPUTS:
            below = tl.load(k_start + place * C + x, mask=x < C, other=0.0)
    state = tl.load(kv_start + at, mask=inside, other=0.0)
    for n in range(chunks):
        chunk = segment * chunks + n
        if backwards:
            chunk = segment * chunks + chunks - 1 - n
        rows = chunk * L + tl.arange(0, L)
        position = (batch * length + rows) * heads + head
        if WANTED != OUTPUTS:
            share = tl.load(weight + position, mask=rows < length, other=1.0)[:, None]
        if of_features:
            gradient = _rows(d_out, rows, heads * M, x, length, M) / share
            values = _rows(v, rows, v_t, x, length, M)
            d_total = tl.load(h + position, mask=rows < length, other=0.0)
            raw_queries = _rows(q, rows, q_t, y, length, C)
            raw_keys = _rows(k, rows, k_t, y, length, C)
            queries = _phi(raw_queries, rows, y, length, C, ELU)
            keys = _phi(raw_keys, rows, y, length, C, ELU)
        else:
            queries = _phi(_rows(q, rows, q_t, x, length, C), rows, x, length, C, ELU)
            keys = _phi(_rows(k, rows, k_t, x, length, C), rows, x, length, C, ELU)
        if WANTED == OUTPUTS:
            a, b, c = queries, keys, _rows(v, rows, v_t, y, length, M)
        elif WANTED == D_QUERIES:
            a, b, c = gradient, values, keys
        elif WANTED == D_KEYS:
            a, b, c = values, gradient, queries
        else:
            a, b, c = keys, queries, _rows(d_out, rows, heads * M, y, length, M) / share

        weights = _product(a, tl.trans(b), PRODUCT, PRECISION)
        if WANTED == D_QUERIES:
            weights += d_total[:, None]
        if WANTED == D_KEYS:
            weights += d_total[None, :]
        seen = rows[:, None] <= rows[None, :] if backwards else rows[:, None] >= rows[None, :]
        weights = tl.where(seen, weights, 0.0)
        sums = _product(weights, c, PRODUCT, PRECISION)
        sums += _product(a, state, tl.float32, PRECISION)
        state += _product(tl.trans(b), c, PRODUCT, PRECISION)

        if WANTED == OUTPUTS:
            total = tl.sum(weights, 1) + tl.sum(a * below[None, :], 1) + eps
            below += tl.sum(b, 0)
            sums /= total[:, None]
            if tl.program_id(1) == 0:
                tl.store(weight + position, total, mask=rows < length)
        if WANTED == D_QUERIES:
            sums += d_total[:, None] * below[None, :]
            below += tl.sum(c, 0)
            if ELU:  # where x <= 0, elu + 1 is its own derivative
                sums *= tl.where(raw_queries > 0, 1.0, queries)
        if WANTED == D_KEYS:
            sums += below[None, :]
            below += tl.sum(d_total[:, None] * c, 0)
            if ELU:
                sums *= tl.where(raw_keys > 0, 1.0, keys)
        if of_features:
            first = (batch * length * heads + head) * C
            _keep_rows(out + first, sums, rows, heads * C, y, length, C)
        else:
            first = (batch * length * heads + head) * M
            _keep_rows(out + first, sums, rows, heads * M, y, length, M)
    if ENDS:
        tl.store(kv_end + at, state, mask=inside)
        if of_features:
            tl.store(k_end + place * C + y, below, mask=y < C)
        elif tl.program_id(1) == 0:
            tl.store(k_end + place * C + x, below, mask=x < C)


class _Call:
    """The tensors and sizes of one call, and what its programs have in common."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, elu: bool):
        refuse("triton", unavailable(v.device, v.dtype) or too_wide(q, v, WIDEST))
        self.q, self.k, self.v = q, k, v
        self.batch, self.length, self.heads, self.c = q.shape
        self.m = v.shape[-1]
        self.padded = tuple(max(16, triton.next_power_of_2(x)) for x in (self.c, self.m))
        roomy = max(self.padded) <= NARROW and v.dtype != torch.float32
        self.chunk = CHUNK if roomy else CHUNK // 2
        chunks = max(1, triton.cdiv(self.length, self.chunk))
        self.sequences = self.batch * self.heads
        # As many segments as keep the GPU busy, of equal length.
        self.chunks = triton.cdiv(
            chunks, min(chunks, triton.cdiv(PROGRAMS, max(1, self.sequences)))
        )
        self.segments = triton.cdiv(chunks, self.chunks)
        # By the values: features beside bfloat16 values are float32 if phi is not fused.
        product = tl.bfloat16 if v.dtype == torch.bfloat16 else tl.float32
        self.shared = {
            "C": self.c, "M": self.m, "L": self.chunk, "ELU": elu, "PRODUCT": product,
            "PRECISION": "tf32x3" if v.dtype == torch.float32 else "tf32",
        }  # fmt: skip
        self.counts = self.length, self.heads, self.segments, self.chunks

    def starts(self, a, c, weight, h, start, end, *, reverse: bool) -> Sequence[Tensor]:
        """Return the state that each segment starts from, and write that after the last to `end`.

        A single segment starts from the given state, and `scan` writes its end.
        """
        if self.segments == 1:
            return start
        sums = tuple(x.new_empty(self.sequences, self.segments, *x.shape[2:]) for x in start)
        bc, bm = (min(NARROW, x) for x in self.padded)
        blocks = triton.cdiv(self.c, bc), triton.cdiv(self.m, bm)
        _sum_segments[(self.sequences * self.segments, *blocks)](
            a, c, weight, h, *sums, *a.stride()[:3], *c.stride()[:3], *self.counts,
            BC=bc, BM=bm, GRADIENT=reverse, **self.shared,
        )  # fmt: skip
        for added, begin, last in zip(sums, start, end, strict=True):
            size = begin[0, 0].numel()
            block = min(SCANNED, triton.next_power_of_2(size))
            _run_sums[(self.sequences, triton.cdiv(size, block))](
                added, begin, last, self.segments, SIZE=size, BLOCK=block, REVERSED=reverse
            )
        return sums

    def scan(self, wanted, out, weight, start, end=None, d_out=None, h=None, eps=0.0) -> None:
        """Compute one of four results and, of a single segment, the state at the end."""
        of_features = wanted in (D_QUERIES, D_KEYS)
        height, width = reversed(self.padded) if of_features else self.padded
        columns = self.c if of_features else self.m
        width = min(width, NARROW, max(16, HELD // height))
        wide = max(self.padded) > NARROW
        _scan[(self.sequences * self.segments, triton.cdiv(columns, width))](
            self.q, self.k, self.v, out if d_out is None else d_out, weight,
            weight if h is None else h, *start, out, *(start if end is None else end),
            *self.q.stride()[:3], *self.k.stride()[:3], *self.v.stride()[:3], *self.counts, eps,
            HEIGHT=height, WIDTH=width, WANTED=wanted, ENDS=end is not None and self.segments == 1,
            num_warps=8 if wide else 4, num_stages=1 if wide else 2, **self.shared,
        )  # fmt: skip


def _forward(given: Sequence[Tensor], eps: float, elu: bool, results: Sequence[Tensor]) -> None:
    q, k, v, *start = _readable(given)
    out, weight, *end = results
    call = _Call(q, k, v, elu)
    starts = call.starts(k, v, None, None, start, end, reverse=False)
    call.scan(OUTPUTS, out, weight, starts, end, eps=eps)


def _backward(given: Sequence[Tensor], elu: bool, gradients: Sequence[Tensor]) -> None:
    q, k, v, *start, out, weight, d_out, d_kv_end, d_k_end = _readable(given)
    d_q, d_k, d_v, *d_start = gradients
    call = _Call(q, k, v, elu)
    h = torch.empty_like(weight)
    _weight_gradients[(triton.cdiv(h.numel(), call.chunk),)](
        d_out, out, weight, h, h.numel(), M=call.m, BM=call.padded[1], L=call.chunk
    )
    ignored = [torch.empty_like(x) for x in start] if call.segments > 1 else start
    before = call.starts(k, v, None, None, start, ignored, reverse=False)
    call.scan(D_QUERIES, d_q, weight, before, d_out=d_out, h=h)
    after = call.starts(q, d_out, weight, h, (d_kv_end, d_k_end), d_start, reverse=True)
    call.scan(D_KEYS, d_k, weight, after, d_start, d_out=d_out, h=h)
    call.scan(D_VALUES, d_v, weight, after, d_out=d_out)


def _readable(given: Sequence[Tensor]) -> list[Tensor]:
    """Return q, k and v as they lie, if their rows have no gaps, and everything else dense."""
    views = [x if x.stride(-1) == 1 else x.contiguous() for x in given[:3]]
    return views + [x.contiguous() for x in given[3:]]


triton_linear = operator("triton_causal", _forward, _backward)
