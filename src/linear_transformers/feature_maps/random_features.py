"""What random features share: directions that are drawn once and saved."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.feature_maps.base import FeatureMap


class RandomFeatures(FeatureMap):
    """Directions from a standard normal, orthogonal in blocks of d.

    They are a buffer: saved with the weights, the same in every `forward` and `step`. Only
    `redraw` changes them.

    Args:
        head_dim: d.
        num_directions: How many; None is 2 d. The error of the kernel falls as 1/sqrt of it.

    Raises:
        ValueError: Fewer than one direction.
    """

    directions: Tensor

    def __init__(self, head_dim: int, *, num_directions: int | None = None):
        super().__init__()
        number = 2 * head_dim if num_directions is None else num_directions
        if number < 1:
            raise ValueError(f"num_directions={number} was asked for; it must be at least 1.")
        self.register_buffer("directions", orthogonal_directions(number, head_dim))

    def redraw(self) -> None:
        """New directions, in training only: what was learned meets other noise.

        Raises:
            RuntimeError: The map is in `eval()` mode, where it must not change.
        """
        if not self.training:
            raise RuntimeError("Random features are not redrawn in eval(): call train() first.")
        self.directions.copy_(orthogonal_directions(*self.directions.shape))

    def project(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch n"]:
        """Each direction's dot product with x / d^(1/4), so that q . k comes out scaled."""
        return x @ self.directions.to(x.dtype).T * x.shape[-1] ** -0.25


def orthogonal_directions(number: int, width: int) -> Float[Tensor, "n d"]:
    """Rows that are each standard normal, and orthogonal within every block of `width`.

    Choromanski et al. (2021), section 2.4: less variance than independent rows, no bias.
    """
    blocks = []
    for _ in range(math.ceil(number / width)):
        basis, triangle = torch.linalg.qr(torch.randn(width, width))
        # QR alone is not uniform over rotations: its signs are the algorithm's.
        basis = basis * triangle.diagonal().sign()
        lengths = torch.randn(width, width).norm(dim=1, keepdim=True)
        blocks.append(basis.T * lengths)
    return torch.cat(blocks)[:number]
