"""The short convolution of recurrent mixers: each channel's last few inputs, weighed."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.attention.states import check_past
from linear_transformers.kernels.convolution import convolved
from linear_transformers.ops.lengths import valid
from linear_transformers.shapes import Lengths


class ShortConvolution(nn.Module):
    """A depthwise convolution over time: y_i = sum_j w_j x_(i - width + 1 + j), each channel alone.

    The state is the last `width - 1` inputs.

    Args:
        channels: The number of channels.
        width: The number of positions that an output sees.
    """

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.width = width
        self._sizes = width - 1, channels  # of a sequence's state
        self.weight = nn.Parameter(torch.empty(width, channels))
        nn.init.uniform_(self.weight, -(width**-0.5), width**-0.5)

    def forward(
        self,
        x: Float[Tensor, "b t channels"],
        state: Float[Tensor, "b kept channels"] | None = None,
    ) -> tuple[Float[Tensor, "b t channels"], Float[Tensor, "b kept channels"]]:
        """Return the outputs of inputs that follow `state`, and the state after them.

        Raises:
            ValueError: The state is that of other sequences, or of another layer.
        """
        kept = self.width - 1
        if state is None:
            y, last = convolved(x, self.weight), x[:, max(0, x.shape[1] - kept) :]
            return y, F.pad(last, (0, 0, kept - last.shape[1], 0))
        check_past(x, state, *self._sizes)
        x = torch.cat([state.to(x.dtype), x], dim=1)
        # Cloned: a view would keep the whole sequence in memory.
        return convolved(x, self.weight)[:, kept:], x[:, x.shape[1] - kept :].clone()

    def step(
        self, x_i: Float[Tensor, "b channels"], state: Float[Tensor, "b kept channels"]
    ) -> tuple[Float[Tensor, "b channels"], Float[Tensor, "b kept channels"]]:
        """Return the output of one input, and the state that includes it.

        Raises:
            ValueError: The state is that of other sequences, or of another layer.
        """
        check_past(x_i, state, *self._sizes)
        x = torch.cat([state.to(x_i.dtype), x_i.unsqueeze(1)], dim=1)
        return (x * self.weight.to(x.dtype)).sum(1), x[:, 1:]

    def centred(
        self, x: Float[Tensor, "b t channels"], lengths: Lengths | None = None
    ) -> Float[Tensor, "b t channels"]:
        """Return outputs that see inputs to both sides, of an even width one more before them.

        Padding is ignored.
        """
        if lengths is not None:
            x = x.where(valid(lengths, x.shape[1]).unsqueeze(-1), 0)
        return convolved(x, self.weight, ahead=(self.width - 1) // 2)
