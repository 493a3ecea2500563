# pyright: reportArgumentType=false, reportCallIssue=false
"""Causal linear attention in Triton, forward and backward: eqs. 8 to 15 of Katharopoulos et al.
(2020).

Everything is one scan over the positions of a head, by chunks, with the state in registers. At
each position an outer product of features and values is added to the state

    S += x y^T,    s += x    [c, m] and [c]

and the state is read: by features, which gives values, or by values, which gives features.

                       added (x, y)        read by             from
    outputs            phi(k), v           phi(q)              the start
    d phi(q)           phi(k), v           [g, h]              the start
    d v                phi(q), [g, h]      phi(k)              the end
    d phi(k)           phi(q), [g, h]      [v, 1]              the end

where g and h are the gradients of a sum of values and of the sum of weights under it; h weighs
what s sums. The last two are one scan where the whole state fits into the registers of a program.
Within a chunk, what is read of what the chunk itself added is a masked product.

A program takes one head of one sequence, or some rows or columns of its state. Where these are
too few to keep a GPU busy, a sequence is cut into segments that run in parallel: what each of them
adds to the state is written first, and every scan begins by summing what the segments before it
add. Nothing is kept of a position but its sum of weights.

Products take bfloat16 as it is, everything else as float32 (float16 in tf32, for its range;
float32 in three parts of tf32, for its precision), and accumulate in float32, as states do.
On a CPU this runs in Triton's interpreter: TRITON_INTERPRET=1, set before it is imported.
"""

import os
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, no_type_check  # checks must not wrap what Triton compiles

import torch
import triton
import triton.language as tl
from torch import Tensor

from linear_transformers.kernels.operator import WIDEST, Given, operator, refuse, too_wide

FUSED = 32  # features and values of a head that a program takes whole
OLDEST = (8, 0)  # compute capability
FURTHEST = 2**24  # numbers between neighbouring positions: 128 of them are less than 2^31
PROCESSORS = 132  # of the GPU that is compiled for where there is none: an H100 or H200
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
ROUND = tl.constexpr("cvt.rna.tf32.f32 $0, $1;")


class Launch(NamedTuple):
    """How a scan is compiled.

    Attributes:
        chunk: The number of positions of a chunk.
        block: The largest number of rows, or of columns, of a state that is cut.
        warps: The number of warps of a program.
        stages: The number of chunks that are in flight: one is computed, the others are loaded.
        programs: The number of programs of a scan for each multiprocessor: sequences are cut into
            segments until there are so many, which registers allow at once.
    """

    chunk: int
    block: int
    warps: int
    stages: int
    programs: int


# By the padded width of heads; spills and instructions are asserted in tests/kernels. No product
# has 64 rows or more, so none is an asynchronous one (wgmma): some assemblers reuse the registers
# of those before they are read (Triton issues 11781 and 11854), and gave wrong gradients on an
# H200. Programs of one warp wait for no other, and as many as there are registers for hide what
# each waits for: half the time of one program of two warps a multiprocessor, see results/notes.md.
HALF = {
    16: Launch(16, 32, 1, 3, 8), 32: Launch(16, 32, 1, 3, 8), 64: Launch(16, 16, 1, 3, 8),
    128: Launch(16, 16, 2, 2, 4), 256: Launch(16, 16, 8, 1, 1),
}  # fmt: skip
SINGLE = {
    16: Launch(16, 32, 1, 2, 8), 32: Launch(16, 32, 2, 2, 4), 64: Launch(16, 32, 4, 2, 2),
    128: Launch(16, 16, 8, 1, 1), 256: Launch(16, 16, 8, 1, 1),
}  # fmt: skip


def launch_for(width: int, dtype: torch.dtype) -> Launch:
    """Return how scans are compiled for heads of a padded width, and values of a type."""
    return (SINGLE if dtype == torch.float32 else HALF)[width]


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernels cannot run, or None."""
    if dtype == torch.float64:
        return "it has no float64"
    if device.type == "cuda":
        return _lacks(device)
    if device.type == "cpu" and INTERPRETED.value:
        return None
    return f"it is made for GPUs, and the tensors are on {device}"


@cache
def _lacks(device: torch.device) -> str | None:
    """Return what a GPU lacks, or None: none is asked where there is none, as in tests."""
    if torch.version.hip:
        return "it is made for NVIDIA's GPUs"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < OLDEST:
        return "this GPU has no tf32: it is older than compute capability 8.0"
    return None


@triton.jit
@no_type_check
def _rows(data, first, rows, stride, columns, left, width):
    """Load some columns of the positions after the first, in float32; zero outside."""
    inside = (rows[:, None] < left) & (columns[None, :] < width)
    at = rows[:, None] * stride + columns[None, :]  # in 32 bits, and the same in each chunk
    return tl.load(data + first * stride + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _keep_rows(data, tile, first, rows, stride, columns, left, width):
    inside = (rows[:, None] < left) & (columns[None, :] < width)
    tl.store(data + first * stride + rows[:, None] * stride + columns[None, :], tile, mask=inside)


@triton.jit
@no_type_check
def elu_features(x):
    # Not a minimum: that of a NaN and 0 is 0 on a GPU.
    return tl.where(x > 0, x + 1, tl.exp(tl.where(x > 0, 0.0, x)))


@triton.jit
@no_type_check
def _phi(x, rows, columns, left, width, ELU: tl.constexpr):
    """Return features; those of padding are zero."""
    if ELU:
        x = elu_features(x)
        x = tl.where((rows[:, None] < left) & (columns[None, :] < width), x, 0.0)
    return x


@triton.jit
@no_type_check
def _rounded(x):
    """Round to tf32: matrix instructions would cut the bits off, and every sum be too small."""
    if INTERPRETED:
        return x
    return tl.inline_asm_elementwise(ROUND, "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
@no_type_check
def _product(a, b, PRODUCT: tl.constexpr, PRECISION: tl.constexpr):
    a, b = a.to(PRODUCT), b.to(PRODUCT)
    if INTERPRETED:  # the interpreter's products have no bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    elif a.dtype == tl.float32 and PRECISION == "tf32":
        a, b = _rounded(a), _rounded(b)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
@no_type_check
def _place(segments, heads):
    """Return a program's segment, and its sequence's number among all heads, batch and head."""
    program = tl.program_id(0).to(tl.int64)
    sequence = program // segments
    return program % segments, sequence, sequence // heads, sequence % heads


@triton.jit
@no_type_check
def _gradients(d_out, weight, first, at_rows, rows, stride, y, left, M: tl.constexpr):
    """Return g, the gradient of each position's sum of values."""
    share = 1 / tl.load(weight + at_rows, mask=rows < left, other=1.0)
    return _rows(d_out, first, rows, stride, y, left, M) * share[:, None]


@triton.jit(do_not_specialize=["length", "heads", "segments", "chunks"])
@no_type_check
def _sum_segments(
    q, k, v, out, weight, d_out, kv_sums, k_sums, d_kv_sums, d_k_sums,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, length, heads, segments, chunks,
    C: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, L: tl.constexpr,
    ELU: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum what each segment adds to the state and, if `d_out` is given, to that from the end."""
    segment, sequence, batch, head = _place(segments, heads)
    position = batch * length * heads + head  # the sequence's first, among those of all heads
    q += batch * q_b + head * q_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    if d_out is not None:
        weight += position
        out += position * M
        d_out += position * M
    rows = tl.arange(0, L)
    x = tl.program_id(1) * BC + tl.arange(0, BC)
    y = tl.arange(0, BM)
    state, d_state = tl.zeros([BC, BM], tl.float32), tl.zeros([BC, BM], tl.float32)
    below, d_below = tl.zeros([BC], tl.float32), tl.zeros([BC], tl.float32)
    for n in range(chunks):
        first = (segment * chunks + n) * L
        left = length - first
        keys = _phi(_rows(k, first, rows, k_t, x, left, C), rows, x, left, C, ELU)
        values = _rows(v, first, rows, v_t, y, left, M)
        state += _product(tl.trans(keys), values, PRODUCT, PRECISION)
        below += tl.sum(keys, 0)
        if d_out is not None:
            queries = _phi(_rows(q, first, rows, q_t, x, left, C), rows, x, left, C, ELU)
            at_rows = (first + rows) * heads
            gradient = _gradients(d_out, weight, first, at_rows, rows, heads * M, y, left, M)
            d_total = -tl.sum(gradient * _rows(out, first, rows, heads * M, y, left, M), 1)
            d_state += _product(tl.trans(queries), gradient, PRODUCT, PRECISION)
            d_below += tl.sum(d_total[:, None] * queries, 0)
    place = sequence * segments + segment
    inside = (x[:, None] < C) & (y[None, :] < M)
    at = place * C * M + x[:, None] * M + y[None, :]
    tl.store(kv_sums + at, state, mask=inside)
    tl.store(k_sums + place * C + x, below, mask=x < C)
    if d_out is not None:
        tl.store(d_kv_sums + at, d_state, mask=inside)
        tl.store(d_k_sums + place * C + x, d_below, mask=x < C)


@triton.jit(do_not_specialize=["length", "heads", "segments", "chunks"])
@no_type_check
def _scan(
    q, k, v, out, weight, d_out, h, of_values, of_features,
    kv_start, k_start, kv_sums, k_sums, kv_end, k_end,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, length, heads, segments, chunks, eps,
    C: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, L: tl.constexpr,
    REVERSED: tl.constexpr, ELU: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scan a segment: see above. A tensor that is None is not read, or not wanted.

    `of_values` and `of_features` are the results. `h` is written beside d phi(q), and read from
    the end.
    """
    segment, sequence, batch, head = _place(segments, heads)
    position = batch * length * heads + head  # the sequence's first, among those of all heads
    q += batch * q_b + head * q_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    weight += position
    if d_out is not None:
        d_out += position * M
        h += position
        if not REVERSED:
            out += position * M
    if of_values is not None:
        of_values += position * M
    if of_features is not None:
        of_features += position * C
    rows = tl.arange(0, L)
    x = tl.program_id(1) * BC + tl.arange(0, BC)
    y = tl.program_id(2) * BM + tl.arange(0, BM)
    seen = rows[:, None] <= rows[None, :] if REVERSED else rows[:, None] >= rows[None, :]

    # A state that is cut lies with its short side down: see `HALF`.
    turned: tl.constexpr = BC > BM
    if turned:
        inside = (x[None, :] < C) & (y[:, None] < M)
        at = x[None, :] * M + y[:, None]
        state = tl.zeros([BM, BC], tl.float32)
    else:
        inside = (x[:, None] < C) & (y[None, :] < M)
        at = x[:, None] * M + y[None, :]
        state = tl.zeros([BC, BM], tl.float32)
    below = tl.zeros([BC], tl.float32)
    if kv_start is not None:
        state += tl.load(kv_start + sequence * C * M + at, mask=inside, other=0.0)
        below += tl.load(k_start + sequence * C + x, mask=x < C, other=0.0)
    if kv_sums is not None:
        for n in tl.range(segments - 1 - segment if REVERSED else segment, loop_unroll_factor=4):
            place = sequence * segments + (segments - 1 - n if REVERSED else n)
            state += tl.load(kv_sums + place * C * M + at, mask=inside, other=0.0)
            below += tl.load(k_sums + place * C + x, mask=x < C, other=0.0)

    for n in range(chunks):
        first = (segment * chunks + (chunks - 1 - n if REVERSED else n)) * L
        left = length - first
        raw_queries = _rows(q, first, rows, q_t, x, left, C)
        raw_keys = _rows(k, first, rows, k_t, x, left, C)
        queries = _phi(raw_queries, rows, x, left, C, ELU)
        keys = _phi(raw_keys, rows, x, left, C, ELU)
        values = _rows(v, first, rows, v_t, y, left, M)
        gradient, d_total = values, below  # of outputs, which need neither
        at_rows = (first + rows) * heads
        if d_out is not None:
            gradient = _gradients(d_out, weight, first, at_rows, rows, heads * M, y, left, M)
            if REVERSED:
                d_total = tl.load(h + at_rows, mask=rows < left, other=0.0)
            else:
                outputs = _rows(out, first, rows, heads * M, y, left, M)
                d_total = -tl.sum(gradient * outputs, 1)
                tl.store(h + at_rows, d_total, mask=(rows < left) & (tl.program_id(1) == 0))
        if REVERSED:
            added_x, added_y, read_x, read_y = queries, gradient, keys, values
        else:
            added_x, added_y, read_x, read_y = keys, values, queries, gradient

        if of_values is not None:
            weights = _product(read_x, tl.trans(added_x), PRODUCT, PRECISION)
            weights = tl.where(seen, weights, 0.0)
            sums = _product(weights, added_y, PRODUCT, PRECISION)
            to_values = tl.trans(state) if turned else state
            sums += _product(read_x, to_values, tl.float32, PRECISION)
            if not REVERSED:
                total = tl.sum(weights, 1) + tl.sum(read_x * below[None, :], 1) + eps
                sums *= (1 / total)[:, None]
                kept = (rows < left) & (tl.program_id(2) == 0)
                tl.store(weight + at_rows, total, mask=kept)
            _keep_rows(of_values, sums, first, rows, heads * M, y, left, M)
        if of_features is not None:
            weights = _product(read_y, tl.trans(added_y), PRODUCT, PRECISION)
            weights += d_total[None, :] if REVERSED else d_total[:, None]
            weights = tl.where(seen, weights, 0.0)
            sums = _product(weights, added_x, PRODUCT, PRECISION)
            to_features = state if turned else tl.trans(state)
            sums += _product(read_y, to_features, tl.float32, PRECISION)
            sums += below[None, :] if REVERSED else d_total[:, None] * below[None, :]
            if ELU:  # where x <= 0, elu + 1 is its own derivative
                if REVERSED:
                    sums *= tl.where(raw_keys > 0, 1.0, keys)
                else:
                    sums *= tl.where(raw_queries > 0, 1.0, queries)
            _keep_rows(of_features, sums, first, rows, heads * C, x, left, C)
        if turned:
            state += _product(tl.trans(added_y), added_x, PRODUCT, PRECISION)
        else:
            state += _product(tl.trans(added_x), added_y, PRODUCT, PRECISION)
        below += tl.sum(d_total[:, None] * added_x if REVERSED else added_x, 0)

    if kv_end is not None:
        last = segment == (0 if REVERSED else segments - 1)
        tl.store(kv_end + sequence * C * M + at, state, mask=inside & last)
        tl.store(k_end + sequence * C + x, below, mask=(x < C) & last & (tl.program_id(2) == 0))


State = Sequence[Tensor | None]  # its sums of outer products and of features
NO_STATE: State = (None, None)


class _Call:
    """The tensors and sizes of one call, and what its scans have in common."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, elu: bool):
        width = max(q.shape[-1], v.shape[-1])
        refuse("triton", unavailable(v.device, v.dtype) or too_wide(width, WIDEST))
        self.q, self.k, self.v = q, k, v
        batch, length, heads, self.c = q.shape
        self.m = v.shape[-1]
        self.sequences = batch * heads
        self.widths = tuple(max(16, triton.next_power_of_2(x)) for x in (self.c, self.m))
        self.launch = launch = launch_for(max(self.widths), v.dtype)
        chunks = max(1, triton.cdiv(length, launch.chunk))
        blocks = 1 if self.is_whole else triton.cdiv(max(self.widths), launch.block)
        segments = segments_for(self.sequences * blocks, launch.programs, v.device)
        self.chunks = triton.cdiv(chunks, min(chunks, segments))
        self.segments = triton.cdiv(chunks, self.chunks)
        self.counts = length, heads, self.segments, self.chunks
        self.strides = *q.stride()[:3], *k.stride()[:3], *v.stride()[:3]
        # By the values: features beside bfloat16 values are float32 if phi is not fused.
        product = tl.bfloat16 if v.dtype == torch.bfloat16 else tl.float32
        self.shared = {
            "C": self.c, "M": self.m, "L": launch.chunk, "ELU": elu, "PRODUCT": product,
            "PRECISION": "tf32x3" if v.dtype == torch.float32 else "tf32",
            "num_warps": launch.warps, "num_stages": launch.stages,
        }  # fmt: skip

    @property
    def is_whole(self) -> bool:
        """Whether a program holds a whole state."""
        return max(self.widths) <= FUSED

    def segment_sums(
        self, out: Tensor | None = None, weight: Tensor | None = None, d_out: Tensor | None = None
    ) -> tuple[State, State]:
        """Return what each segment adds to the state; with gradients, to that from the end too.

        Nothing where there is one segment.
        """
        if self.segments == 1:
            return NO_STATE, NO_STATE
        state = self._empty_sums()
        d_state = NO_STATE if d_out is None else self._empty_sums()
        block = min(self.widths[0], self.launch.block)
        _sum_segments[self.sequences * self.segments, triton.cdiv(self.c, block)](
            self.q, self.k, self.v, out, weight, d_out, *state, *d_state, *self.strides,
            *self.counts, BC=block, BM=self.widths[1], **self.shared,
        )  # fmt: skip
        return state, d_state

    def _empty_sums(self) -> State:
        shape = self.sequences, self.segments, self.c
        return [self.q.new_empty(x, dtype=torch.float32) for x in ((*shape, self.m), shape)]

    def scan(
        self,
        *,
        start: State = NO_STATE,
        sums: State = NO_STATE,
        end: State = NO_STATE,
        reverse: bool = False,
        out: Tensor | None = None,
        weight: Tensor | None = None,
        d_out: Tensor | None = None,
        h: Tensor | None = None,
        of_values: Tensor | None = None,
        of_features: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        """Launch `_scan`.

        What gives values needs all rows of a state, what gives features all columns.
        """
        bc, bm = self.widths
        if of_values is None:
            bc = min(bc, self.launch.block)
        if of_features is None:
            bm = min(bm, self.launch.block)
        grid = self.sequences * self.segments, triton.cdiv(self.c, bc), triton.cdiv(self.m, bm)
        _scan[grid](
            self.q, self.k, self.v, out, weight, d_out, h, of_values, of_features,
            *start, *sums, *end, *self.strides, *self.counts, eps, BC=bc, BM=bm, REVERSED=reverse,
            **self.shared,
        )  # fmt: skip


def segments_for(uncut: int, programs: int, device: torch.device) -> int:
    """Return into how many segments sequences are cut.

    Args:
        uncut: The number of programs of a scan, were they not cut.
        programs: The number wanted, of a multiprocessor.
        device: The GPU.
    """
    return max(1, programs * _processors(device) // max(1, uncut))


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _forward(given: Given, eps: float, elu: bool, results: Sequence[Tensor]) -> None:
    q, k, v, *start = _readable(given)
    out, weight, *end = results
    call = _Call(q, k, v, elu)
    sums, _ = call.segment_sums()
    call.scan(start=start, sums=sums, end=end, of_values=out, weight=weight, eps=eps)


def _backward(given: Given, elu: bool, gradients: Sequence[Tensor | None]) -> None:
    q, k, v, *start, out, weight, d_out, d_kv_end, d_k_end = _readable(given)
    d_q, d_k, d_v, *end = gradients
    call = _Call(q, k, v, elu)
    known = {"weight": weight, "d_out": d_out, "h": torch.empty_like(weight)}
    before, behind = call.segment_sums(out, weight, d_out)
    call.scan(start=start, sums=before, out=out, of_features=d_q, **known)
    after = {"start": (d_kv_end, d_k_end), "sums": behind, "reverse": True, **known}
    if call.is_whole:
        call.scan(of_values=d_v, of_features=d_k, end=end, **after)
    else:
        call.scan(of_features=d_k, end=end, **after)
        call.scan(of_values=d_v, **after)


def _readable(given: Sequence[Any]) -> list[Any]:
    """Return q, k and v as they lie, if kernels can read them so, and everything else dense.

    They can if rows have no gaps, and offsets within a chunk have 32 bits.
    """
    views = [
        x if x.stride(-1) == 1 and x.stride(1) < FURTHEST else x.contiguous() for x in given[:3]
    ]
    return views + [None if x is None else x.contiguous() for x in given[3:]]


triton_linear = operator("triton_causal", _forward, _backward)
