"""Deterministic parameter-free projection: products of rectified entries. c = 2 d order.

    r = relu([x, -x]),   phi(x)_(i, j) = r_i r_(i+j)  for i = 1 ... 2 d, j = 1 ... order

Schlag, Irie and Schmidhuber (2021), eq. 33: sparse, nearly orthogonal features in a space larger
than that of x. A query that shares no active product with any key attends to nothing, as with
relu.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.config.ranges import Size, ranged
from linear_transformers.feature_maps.base import FeatureMap


class Dpfp(FeatureMap):
    """Products of each rectified entry with its neighbours, cyclically. Costs c products a vector.

    Args:
        head_dim: The width of a vector, d.
        order: The number of neighbours, 1 to 2 d - 1; nu in the paper.

    Raises:
        ValueError: `order` is out of its range.
    """

    @ranged
    def __init__(self, head_dim: int, *, order: Size = 1):
        super().__init__()
        if order >= 2 * head_dim:
            raise ValueError(
                f"order={order} was asked for; with head_dim={head_dim} it may be 1 to "
                f"{2 * head_dim - 1}."
            )
        self.order = order
        self.feature_dim = 2 * head_dim * order

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch c"]:
        r = torch.cat([x, -x], dim=-1).relu()
        return torch.cat([r * r.roll(j, dims=-1) for j in range(1, self.order + 1)], dim=-1)
