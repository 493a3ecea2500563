"""Sequences of several lengths in one batch: the end of each is padding."""

import torch
from jaxtyping import Bool
from torch import Tensor

from linear_transformers import shapes as sh


def check_lengths(lengths: Tensor, batch: int, size: int) -> None:
    """Refuse lengths that are not those of padded sequences.

    Args:
        lengths: The length of each. On a GPU they are not looked at, which would wait, nor are
            those that are compiled or transformed.
        batch: The number of sequences.
        size: The number of positions, with padding.

    Raises:
        ValueError: There is not one whole number for each, or one is not within 1 to `size`.
    """
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ValueError(
            f"Lengths {list(lengths.shape)} of {lengths.dtype} were given for {batch} sequences. "
            "Give one whole number for each."
        )
    looked_at = not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
    if looked_at and lengths.device.type == "cpu":
        for length in lengths.aminmax() if batch else ():
            if not 0 < length <= size:
                raise ValueError(
                    f"A length of {length} was given; the sequences have {size} positions, with "
                    "padding. Give at least 1, and no more than there are."
                )


def valid(lengths: sh.Lengths, size: int) -> Bool[Tensor, "b size"]:
    """Return which positions are not padding."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)
