"""Hedgehog: a learned map that starts out spiky, as softmax is. c = 2 d.

    phi(x) = [softmax(W x), softmax(-W x)],  W learned, the identity at first

Zhang et al. (2024), "The Hedgehog & the Porcupine", with the softmax over features that their
code adds for stability. One W serves the queries and keys of all heads of a layer.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.feature_maps.base import FeatureMap


class Hedgehog(FeatureMap):
    """Positive features of a learned projection and of its opposite.

    Costs d^2 multiply-adds and 2 d exponentials a vector.
    """

    def __init__(self, head_dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(head_dim))
        self.feature_dim = 2 * head_dim

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch c"]:
        projected = x @ self.weight.to(x.dtype).T
        return torch.cat([projected.softmax(-1), (-projected).softmax(-1)], dim=-1)
