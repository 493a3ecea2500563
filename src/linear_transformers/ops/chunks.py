"""Cut time into segments and chunks, and carry states from one to the next.

A GPU is given all chunks of a sequence at once; a CPU one segment after the other, of as many
chunks as its cache holds.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.precision import widened, without_autocast

State = TypeVar("State")
CACHED_ROWS = 2**15  # b t h of a segment whose products stay in a CPU's cache


def in_segments(
    run: Callable[..., tuple[Tensor, State]],
    inputs: tuple[Float[Tensor, "b t h _"], ...],
    *,
    state: State | None,
    chunk_size: int,
) -> tuple[Float[Tensor, "b t h m"], State]:
    """Return the outputs of all positions and the state after them, one segment at a time.

    Args:
        run: Computes a segment: its inputs, widened, and the state before it in, outputs and the
            state after it out.
        inputs: The tensors that are cut: queries, keys, values, whose type outputs have, and more.
        state: The state before the first position.
        chunk_size: The positions of a chunk; a segment is of whole ones.
    """
    batch, length, num_heads, _ = inputs[0].shape
    if inputs[0].device.type == "cpu":
        chunks = max(1, CACHED_ROWS // (chunk_size * max(1, batch * num_heads)))
        length = min(length, chunk_size * chunks)
    outputs, after = [], state
    with without_autocast(inputs[0]):
        for parts in zip(*(x.split(max(1, length), 1) for x in inputs), strict=True):
            output, after = run(*widened(*parts), state=after, chunk_size=chunk_size)
            outputs.append(output.to(inputs[2].dtype))
    assert after is not None
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), after


def split(x: Float[Tensor, "b t h c"], size: int) -> Float[Tensor, "b h n l c"]:
    """Cut time into chunks of `size`. Zeros pad the last one."""
    if missing := -x.shape[1] % size:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
    # Contiguous here: otherwise every product makes its own copy.
    return x.unflatten(1, (-1, size)).permute(0, 3, 1, 2, 4).contiguous()


def join(x: Float[Tensor, "b h n l m"], length: int) -> Float[Tensor, "b t h m"]:
    """Return the first `length` positions of the chunks."""
    return x.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :length]


def with_previous(x: Float[Tensor, "*batch n l d"]) -> Float[Tensor, "*batch n two_l d"]:
    """Return each chunk behind the one before it; before the first are zeros."""
    return torch.cat([F.pad(x, (0, 0, 0, 0, 1, -1)), x], dim=-2)


def last(states: Float[Tensor, "b h n *widths"]) -> Float[Tensor, "b h *widths"]:
    """Return the state after all chunks, a copy: a view would keep those of all in memory."""
    return states[:, :, -1].clone(memory_format=torch.contiguous_format)
