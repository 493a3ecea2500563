"""Dropout (Srivastava et al., 2014) whose masks are computed where they are needed, and not kept.

Whether a number is dropped is a function of its place alone: of the draw (seed, step), of the
module, of the sample's index in the global batch, of its position, and of the feature. Masks are
therefore the same on any device, for any number of threads and any division of a batch over
processes, and the backward pass computes them again.

The function is Philox4x32-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"),
a counter-based generator. Each of its calls gives eight numbers of 16 bits:

    key (seed, step), counter (block, position, sample, module) -> words 0 to 3

Of a row of e features, block i of ceil(e / 8) has the features i, i + blocks, i + 2 blocks, ...:
first the lower halves of its four words, then the upper ones. Neighbours have neighbouring
counters, so that a vector of any width computes them side by side.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from linear_transformers.shapes import Hidden

# Of a forward pass: the seed, the step, the index of the first sample in the global batch, and the
# position of the first vector in its sequence. On the CPU: no kernel waits for a device.
Draw = Int[Tensor, "4"]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
PER_BLOCK = 8  # numbers from one call


def threshold(rate: float) -> int:
    """Return the least of the 65,536 numbers that are kept. No rate drops all of them."""
    return min(round(rate * 65536), 65535)


def scale(rate: float) -> float:
    """Return what numbers that are kept are multiplied by, so that the mean stays."""
    return 65536 / (65536 - threshold(rate))


def dropout(
    x: Hidden, draw: Draw, *, rate: float, place: int, residual: Hidden | None = None
) -> Hidden:
    """Return x with a share of its numbers set to zero, added to a residual.

    Args:
        x: The numbers.
        draw: The draw of this forward pass.
        rate: The share that is dropped, in [0, 1), to the nearest of 65,536.
        place: The number of the module: no other has the same masks.
        residual: What the result is added to; None is nothing.
    """
    kept = mask(draw, x.shape, rate=rate, place=place, device=x.device)
    x = torch.where(kept, x * scale(rate), 0)
    return x if residual is None else residual + x


def mask(
    draw: Draw, shape: tuple[int, ...], *, rate: float, place: int, device: torch.device
) -> Bool[Tensor, "b t e"]:
    """Return which numbers of a batch [b, t, e] are kept."""
    (b, t, e), (seed, step, first, start) = shape, draw.tolist()
    blocks = -(-e // PER_BLOCK)
    block, position, sample = (torch.arange(n, device=device) for n in (blocks, t, b))
    counter = (block, start + position[:, None], first + sample[:, None, None], torch.tensor(place))
    words = philox((seed, step), tuple(word.to(device) for word in counter))
    halves = [word & 0xFFFF for word in words] + [word >> 16 for word in words]
    numbers = torch.stack([half.expand(b, t, blocks) for half in halves], dim=-2)
    return numbers.flatten(-2)[..., :e] >= threshold(rate)


def philox(key: tuple[int, int], counter: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the four words of 32 bits that Philox4x32-10 makes of four words.

    Args:
        key: Two words. Of larger numbers, the lower 32 bits count.
        counter: Four words, int64, that broadcast.
    """
    keys = [word & WORD for word in key]
    x = [word & WORD for word in counter]
    for _ in range(ROUNDS):
        (high_0, low_0), (high_1, low_1) = (
            _product(multiplier, word)
            for multiplier, word in zip(MULTIPLIERS, (x[0], x[2]), strict=True)
        )
        x = [high_1 ^ x[1] ^ keys[0], low_1, high_0 ^ x[3] ^ keys[1], low_0]
        keys = [(key + step) & WORD for key, step in zip(keys, INCREMENTS, strict=True)]
    return x


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper and the lower word of a product of words, which int64 cannot hold."""
    lower = a * (b & 0xFFFF)
    upper = a * (b >> 16) + (lower >> 16)
    return upper >> 16, ((upper & 0xFFFF) << 16) | (lower & 0xFFFF)
