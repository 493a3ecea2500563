"""phi(q) . phi(k) = (q . k / sqrt(d) + offset)^2, exactly. c = (d + 1)(d + 2) / 2.

The polynomial of degree 2 that section 3.2.1 of Katharopoulos et al. (2020) names. Linear time
pays where sequences are longer than d^2. Weights are never negative.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.config.ranges import NotNegative, ranged
from linear_transformers.feature_maps.base import ProductMap
from linear_transformers.feature_maps.quadratic import num_pairs, symmetric_square


class Polynomial(ProductMap):
    """The square of x with `sqrt(offset)` appended. Costs c products a vector.

    Args:
        head_dim: The width of a vector, d.
        offset: The number added to the dot product before it is squared. At 0 a key and its
            opposite weigh the same.

    Raises:
        ValueError: The offset is negative: its root is not real.
    """

    @ranged
    def __init__(self, head_dim: int, *, offset: NotNegative = 1.0):
        super().__init__()
        self.scale = head_dim**-0.25
        self.offset = offset
        self.feature_dim = num_pairs(head_dim + 1)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch c"]:
        offset = torch.full_like(x[..., :1], math.sqrt(self.offset))
        return symmetric_square(torch.cat([x * self.scale, offset], dim=-1))

    def of_products(self, products: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return (products * self.scale**2 + self.offset).square()
