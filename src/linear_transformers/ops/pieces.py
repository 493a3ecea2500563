"""Sequences cut into contiguous pieces, one a device.

Where the state after some positions is an affine function of the one before, S' = K S + A, a device
needs no more of earlier pieces than their K and A, whose size does not depend on their length.
Each device computes those of its piece, all gather them, and each composes those before its own:
LASP-2 (Sun et al., 2025) for sums, K = 1, and the same for decays and for the delta rule. In the
backward pass the gradients of K and A are summed over the devices that read them.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, distributed


@dataclass(frozen=True)
class Place:
    """The place of a device among those that a sequence is cut over.

    Attributes:
        rank: The number of this device.
        devices: The number of devices.
    """

    rank: int
    devices: int

    def piece(self, length: int) -> "Piece":
        """Return this device's piece of sequences; the first ones are longer by one where needed.

        Raises:
            ValueError: There are fewer positions than devices.
        """
        if length < self.devices:
            raise ValueError(
                f"Sequences of {length} positions cannot be cut into {self.devices} pieces. Use "
                "fewer devices."
            )
        size, longer = divmod(length, self.devices)
        lengths = [size + (rank < longer) for rank in range(self.devices)]
        return Piece(self.rank, tuple(lengths))


@dataclass(frozen=True)
class Piece:
    """A contiguous piece of sequences, of which other devices have the rest.

    Attributes:
        rank: The number of this piece, and of its device in the default process group.
        lengths: The lengths of all pieces.
    """

    rank: int
    lengths: tuple[int, ...]

    @property
    def start(self) -> int:
        """The position of the first."""
        return sum(self.lengths[: self.rank])

    def of(self, x: Tensor) -> Tensor:
        """Return the piece of whole sequences [b, t, ...]."""
        return x[:, self.start : self.start + self.lengths[self.rank]]

    def state_before(
        self, added: Float[Tensor, "b h c m"], kept: Float[Tensor, "b h c columns"] | None = None
    ) -> Float[Tensor, "b h c m"]:
        """Return the state that the earlier pieces leave, of S' = K S + A from S = 0.

        Args:
            added: The A of this piece.
            kept: The K of this piece, a matrix, or its diagonal as one column; None is 1.
        """
        parts = added if kept is None else torch.cat([added, kept.to(added)], dim=-1)
        state = torch.zeros_like(added)
        for other in self._earlier(parts):
            added, kept = other.tensor_split((added.shape[-1],), dim=-1)
            if kept.shape[-1] > 1:
                state = kept @ state
            elif kept.shape[-1] == 1:
                state = kept * state
            state = state + added
        return state

    def last_before(
        self, x: Float[Tensor, "b t channels"], count: int
    ) -> Float[Tensor, "b count channels"]:
        """Return the last vectors before the piece; before the first position are zeros."""
        if count == 0:
            return x[:, :0]
        last = F.pad(x[:, max(0, x.shape[1] - count) :], (0, 0, max(0, count - x.shape[1]), 0))
        nothing, *earlier = self._earlier(last)
        kept = zip(earlier, self.lengths, strict=False)  # of each without what it was padded by
        before = [nothing, *(part[:, max(0, count - length) :] for part, length in kept)]
        return torch.cat(before, dim=1)[:, -count:]

    def _earlier(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return zeros, and the tensors of the devices with earlier pieces.

        The zeros keep the first device in the backward pass, in which all add up gradients.
        """
        return torch.cat([torch.zeros_like(x[None]), _Gather.apply(x)[: self.rank]]).unbind()


class _Gather(torch.autograd.Function):
    """The tensors of all devices, one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        gathered = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
        distributed.all_gather(gathered, x)
        return torch.stack(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        summed = gradient.clone(memory_format=torch.contiguous_format)  # others may read it
        distributed.all_reduce(summed)
        return summed[distributed.get_rank()]
