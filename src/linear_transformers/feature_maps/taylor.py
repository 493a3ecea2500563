"""phi(q) . phi(k) = 1 + s + s^2 / 2 with s = q . k / sqrt(d). c = 1 + d + d (d + 1) / 2.

The exponential of softmax to second order (Keles et al. 2022; Arora et al. 2024, "Based").
Weights are at least 1/2 and, where |s| is large, nearly even in s: opposite keys weigh much.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.feature_maps.base import ProductMap
from linear_transformers.feature_maps.quadratic import num_pairs, symmetric_square


class Taylor(ProductMap):
    """[1, x, x^2 / sqrt(2)], of x / d^(1/4). Costs c products a vector."""

    def __init__(self, head_dim: int):
        super().__init__()
        self.scale = head_dim**-0.25
        self.feature_dim = 1 + head_dim + num_pairs(head_dim)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch c"]:
        x = x * self.scale
        one = torch.ones_like(x[..., :1])
        return torch.cat([one, x, symmetric_square(x) / math.sqrt(2)], dim=-1)

    def of_products(self, products: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        score = products * self.scale**2
        return 1 + score + score.square() / 2
