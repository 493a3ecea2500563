"""Normalisation and convolutions between log-mel features and an encoder's stack."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.config.ranges import check_choice
from linear_transformers.ops.lengths import valid
from linear_transformers.shapes import Features, Lengths

NORMALIZATIONS = ("corpus", "utterance", "none")
SUBSAMPLINGS = (1, 2, 4)


class Normalization(nn.Module):
    """Normalisation of each band to mean 0 and variance 1, over the corpus or each utterance.

    Args:
        kind: The source of the statistics: `corpus` (the training corpus; buffers, saved with
            the weights), `utterance` or `none`.
        num_mels: The number of mel bands, f.

    Raises:
        ValueError: The kind is unknown.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, kind: str, num_mels: int):
        super().__init__()
        check_choice("normalization", kind, NORMALIZATIONS)
        self.kind = kind
        self.register_buffer("mean", torch.zeros(num_mels))
        self.register_buffer("deviation", torch.ones(num_mels))

    def forward(self, x: Features, lengths: Lengths) -> Features:
        if self.kind == "corpus":
            return (x - self.mean) / self.deviation
        if self.kind == "none":
            return x
        mask, count = valid(lengths, x.shape[1]).unsqueeze(-1), lengths[:, None, None]
        mean = x.where(mask, 0).sum(1, keepdim=True) / count
        variance = (x - mean).where(mask, 0).square().sum(1, keepdim=True) / count
        return (x - mean) / (variance + 1e-5).sqrt()


class Convolution(nn.Module):
    """A convolution over time in two forms: over a padded batch, or over a stream in pieces.

    There is one output every `stride` frames, which sees `left` frames before it and `right`
    after it: t frames give ceil(t / stride) outputs. A recording is padded with zeros.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        left: int,
        right: int,
        stride: int = 1,
        groups: int = 1,
    ):
        super().__init__()
        self.left, self.right, self.stride = left, right, stride
        self.width = left + 1 + right
        self.weights = nn.Conv1d(num_inputs, num_outputs, self.width, stride=stride, groups=groups)

    def forward(
        self, x: Float[Tensor, "b t i"], lengths: Lengths
    ) -> tuple[Float[Tensor, "b s e"], Lengths]:
        x = x.where(valid(lengths, x.shape[1]).unsqueeze(-1), 0)
        x = F.pad(x.mT, (self.left, self.right))
        return self.weights(x).mT, (lengths - 1) // self.stride + 1

    def init_state(self, batch: int) -> Float[Tensor, "b kept i"]:
        """Return the initial state: zeros in place of the frames before the first."""
        return self.weights.weight.new_zeros(batch, self.left, self.weights.in_channels)

    def stream(
        self, x: Float[Tensor, "b t i"], state: Float[Tensor, "b kept i"], *, last: bool
    ) -> tuple[Float[Tensor, "b s e"], Float[Tensor, "b waiting i"]]:
        """Return the outputs that further frames complete, and the frames that later ones need.

        Args:
            x: The new frames; there may be none.
            state: The frames kept so far. Left unmodified.
            last: Whether these are the last frames.
        """
        x = torch.cat([state, x], dim=1)
        if last:
            x = F.pad(x, (0, 0, 0, self.right))
        count = max(0, (x.shape[1] - self.width) // self.stride + 1)
        if count == 0:
            return x.new_zeros(len(x), 0, self.weights.out_channels), x
        used = (count - 1) * self.stride + self.width
        # Cloned: a view would keep the whole piece in memory.
        return self.weights(x[:, :used].mT).mT, x[:, count * self.stride :].clone()


def subsampling_of(
    factor: int, num_inputs: int, num_outputs: int, *, width: int, causal: bool
) -> nn.ModuleList:
    """Return convolutions that together subsample time by a factor.

    Causal ones see no frame after `factor * i` for output i.

    Raises:
        ValueError: The factor is unknown, or the width is even, or too small for the factor.
    """
    check_choice("subsampling", factor, SUBSAMPLINGS)
    if width < 1 or width % 2 == 0:
        raise ValueError(f"width={width} was asked for; it must be odd.")
    if width == 1 and factor > 1:
        raise ValueError(
            f"width=1 was asked for with subsampling={factor}, which would not look at every other "
            "frame. Use width=3."
        )
    right = 0 if causal else width // 2
    strides = [2] * int(math.log2(factor)) or [1]
    return nn.ModuleList(
        Convolution(
            num_inputs if i == 0 else num_outputs,
            num_outputs,
            left=width - 1 - right,
            right=right,
            stride=stride,
        )
        for i, stride in enumerate(strides)
    )
