"""The short convolution over time, each channel on its own.

    y_t = sum_j w_j x_(t - taps + 1 + ahead + j),   j = 0 ... taps - 1

What is before the first input and after the last is zero. With `ahead` 0 it is causal.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def convolved(
    x: Float[Tensor, "b t channels"], weight: Float[Tensor, "taps channels"], *, ahead: int = 0
) -> Float[Tensor, "b t channels"]:
    """Weigh each channel's neighbours in time.

    Args:
        x: The inputs.
        weight: The weights; the last is that of the latest input.
        ahead: The number of later inputs that an output sees, below the number of weights.
    """
    taps, length = len(weight), x.shape[1]
    x = F.pad(x, (0, 0, taps - 1 - ahead, ahead))
    # Sums of shifted inputs: half the time of conv1d, whose gradients are slow on CPUs.
    return sum(x[:, j : j + length] * w for j, w in enumerate(weight.to(x.dtype)))  # pyright: ignore[reportReturnType]
