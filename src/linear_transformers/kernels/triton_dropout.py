# pyright: reportArgumentType=false, reportCallIssue=false
"""Dropout by computed masks in Triton: `ops/dropout.py` defines which numbers are kept.

A program takes some blocks of some rows: it computes their words once, and then reads and writes
the eight parts of the rows that they decide on, each thread several neighbours at once. On a CPU
this runs in Triton's interpreter.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.random import philox_impl

BLOCKS = 128  # of a row that a program takes, at most
TILE = 1024  # blocks of a program
WIDE = {torch.float64: tl.float64}  # else sums are in float32


def triton_dropout(
    x: Tensor,
    out: Tensor,
    draw: tuple[int, ...],
    *,
    place: int,
    threshold: int,
    scale: float,
    relu: bool,
    residual: Tensor | None,
    activated: Tensor | None,
) -> None:
    """Do what `cpp_dropout` does."""
    if x.numel() == 0:
        return
    batch, length, width = x.shape
    other = next((given for given in (residual, activated) if given is not None), x)
    blocks = triton.cdiv(width, 8)
    lanes = min(BLOCKS, triton.next_power_of_2(blocks))
    rows = batch * length
    side = min(TILE // lanes, triton.next_power_of_2(rows))
    grid = (triton.cdiv(rows, side), triton.cdiv(blocks, lanes))
    words = [_signed(word) for word in (*draw, place)]
    with torch.cuda.device_of(x):
        _dropout[grid](
            x, other, out, rows, length, width, blocks, *words, threshold, scale,
            WIDE=WIDE.get(x.dtype, tl.float32), ROWS=side, LANES=lanes, RELU=relu,
            ADD=residual is not None, GRADIENT=activated is not None, num_warps=4,
        )  # fmt: skip


def _signed(word: int) -> int:
    """Return the lower 32 bits as a signed number: Triton compiles for the size of an integer."""
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@triton.jit(
    # Not the sizes of a row: whether they are multiples of 16 decides how much is loaded at once.
    do_not_specialize=["rows", "length", "seed", "step", "first", "start", "place", "threshold"]
)
@no_type_check
def _dropout(
    x, other, out, rows, length, width, blocks, seed, step, first, start, place, threshold, scale,
    WIDE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, RELU: tl.constexpr,
    ADD: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    block = tl.program_id(1) * LANES + tl.arange(0, LANES)[None, :]
    same = tl.zeros([ROWS, LANES], tl.int32)
    word_0, word_1, word_2, word_3 = philox_impl(
        (same + block).to(tl.uint32),
        (same + start + row % length).to(tl.uint32),
        (same + first + row // length).to(tl.uint32),
        (same + place).to(tl.uint32),
        (same + seed).to(tl.uint32),
        (same + step).to(tl.uint32),
    )
    begin = row.to(tl.int64) * width
    for part in tl.static_range(8):
        if part % 4 == 0:
            word = word_0
        elif part % 4 == 1:
            word = word_1
        elif part % 4 == 2:
            word = word_2
        else:
            word = word_3
        number = (word >> (16 * (part // 4))) & 0xFFFF
        at = part * blocks + block
        inside = (row < rows) & (block < blocks) & (at < width)
        value = tl.load(x + begin + at, mask=inside, other=0.0).to(WIDE)
        if GRADIENT:  # what was kept is positive, or NaN
            kept = (tl.load(other + begin + at, mask=inside, other=0.0) <= 0) == 0
        else:
            kept = number.to(tl.int32) >= threshold
        if RELU:
            value = tl.where(value < 0, 0.0, value)
        value = tl.where(kept, value * scale, 0.0)
        if ADD:
            value += tl.load(other + begin + at, mask=inside, other=0.0).to(WIDE)
        tl.store(out + begin + at, value, mask=inside)
