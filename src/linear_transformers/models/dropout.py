"""Dropout as a module, and what the masks of a model's forward passes are drawn from."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.kernels.dropout import dropout
from linear_transformers.ops.dropout import Draw


def check_eval(model: nn.Module) -> None:
    """Raise a ValueError where a model would draw dropout: of training."""
    if model.training:
        raise ValueError("The model is in train() mode, which draws dropout. Call its eval().")


class Draws:
    """The draws of a stack's forward passes in training, one after the other.

    A program that trains sets seed and step before each batch: its masks are then those of any
    other run that comes to this step, however it came there. Whoever does not has masks by torch's
    generator on the CPU, as those of `nn.Dropout` are: `torch.manual_seed` repeats them, and so
    does `torch.utils.checkpoint`.
    """

    def __init__(self) -> None:
        self._next: Draw | None = None

    def set(self, seed: int, step: int, first: int = 0) -> None:
        """Set what the next forward pass draws from.

        Args:
            seed: The seed of the run.
            step: The number of the batch among all of the run.
            first: The index of this device's first sample in the global batch.
        """
        # A tensor, so that torch.compile takes it for an input and not for a constant.
        self._next = torch.tensor([seed, step, first, 0], device="cpu")

    def next(self, start: int = 0) -> Draw:
        """Return the draw of a forward pass.

        Args:
            start: The position of its first vectors in their sequences.
        """
        place = torch.tensor([0, 0, 0, start], device="cpu")
        if self._next is None:
            words = torch.randint(2**32, (2,), device="cpu")
            return F.pad(words, (0, 2)) + place
        draw = self._next + place
        self._next = self._next + torch.tensor([0, 1, 0, 0], device="cpu")
        return draw


class Dropout(nn.Module):
    """Dropout, in training, by masks that are computed from their place: see `ops.dropout`.

    Args:
        rate: The share of numbers that are set to zero.

    Attributes:
        place: The number of this module among those of its model: see `number`.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.place = 0

    def forward(
        self,
        x: Float[Tensor, "*batch e"],
        draw: Draw | None = None,
        *,
        after: nn.Module | None = None,
        residual: Float[Tensor, "*batch e"] | None = None,
    ) -> Float[Tensor, "*batch e"]:
        """Return dropout of x, or of `after(x)`, added to a residual.

        Args:
            x: The numbers, [b, t, e] where any are dropped.
            draw: The draw of this forward pass; None drops nothing.
            after: The activation before it, computed in the same pass where it is a ReLU.
            residual: What the result is added to; None is nothing.
        """
        if draw is None or self.rate == 0:
            x = x if after is None else after(x)
            return x if residual is None else residual + x
        relu = isinstance(after, nn.ReLU)
        x = x if relu or after is None else after(x)
        return dropout(x, draw, rate=self.rate, place=self.place, residual=residual, relu=relu)


def number(model: nn.Module) -> None:
    """Give each dropout of a model a number of its own."""
    for place, module in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
        module.place = place
