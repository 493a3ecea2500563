"""Cut time into chunks, and carry states from one to the next."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def split(x: Float[Tensor, "b t h c"], size: int) -> Float[Tensor, "b h n l c"]:
    """Cut time into chunks of `size`. Zeros pad the last one."""
    if missing := -x.shape[1] % size:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
    # Contiguous here: otherwise every product makes its own copy.
    return x.unflatten(1, (-1, size)).permute(0, 3, 1, 2, 4).contiguous()


def join(x: Float[Tensor, "b h n l m"], length: int) -> Float[Tensor, "b t h m"]:
    """Return the first `length` positions of the chunks."""
    return x.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :length]


def running(
    start: Float[Tensor, "b h c m"],
    kept: Float[Tensor, "b h n c_or_1 1"],
    additions: Float[Tensor, "b h n c m"],
) -> Float[Tensor, "b h n+1 c m"]:
    """Return the state before each chunk and, last, after all.

    The recurrence is states[n + 1] = kept[n] * states[n] + additions[n].
    """
    states = [start]
    # unbind, not an index: the gradient of each index is as large as all chunks together.
    for factor, addition in zip(kept.unbind(2), additions.unbind(2), strict=True):
        states.append(torch.addcmul(addition, factor, states[-1]))
    return torch.stack(states, dim=2)
