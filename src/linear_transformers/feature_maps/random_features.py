"""Random features: directions that are drawn once and saved."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.config.ranges import Directions, Size, ranged
from linear_transformers.feature_maps.base import FeatureMap


class RandomFeatures(FeatureMap):
    """A map of dot products with random directions: standard normal, orthogonal in blocks of d.

    The directions are a buffer, saved with the weights. Only `redraw` changes them.

    Args:
        head_dim: The width of a vector, d.
        num_directions: The number of directions, g; None is 2 d. The error of the similarity
            falls as 1/sqrt(g).

    Attributes:
        per_direction: The number of features of a direction.

    Raises:
        ValueError: There is no direction.
    """

    per_direction: ClassVar[int] = 1
    directions: Tensor

    @ranged
    def __init__(self, head_dim: Size, *, num_directions: Directions | None = None):
        super().__init__()
        number = 2 * head_dim if num_directions is None else num_directions
        self.feature_dim = self.per_direction * number
        self.register_buffer("directions", orthogonal_directions(number, head_dim))

    def redraw(self) -> None:
        """Draw new directions, in training only.

        Raises:
            RuntimeError: The map is in `eval()` mode, where it must not change.
        """
        if not self.training:
            raise RuntimeError("Random features are not redrawn in eval(): call train() first.")
        self.directions.copy_(orthogonal_directions(*self.directions.shape))

    def project(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch g"]:
        """Return the directions' dot products with x / d^(1/4), which scales q . k by 1/sqrt(d)."""
        return x @ self.directions.to(x.dtype).T * x.shape[-1] ** -0.25


def orthogonal_directions(number: int, width: int) -> Float[Tensor, "g d"]:
    """Return rows that are standard normal, and orthogonal within every block of `width`.

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
