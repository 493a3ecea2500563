"""Random Fourier features: E[phi(q) . phi(k)] = exp(-|q - k|^2 / (2 sqrt(d))), a Gaussian.

    phi(x) = [cos(w . x'), sin(w . x')] / sqrt(g) for g directions w, x' = x / d^(1/4);  c = 2 g

Rahimi and Recht (2007). Unlike FAVOR+'s, features are bounded and the error falls as 1/sqrt(g)
wherever q and k lie. But single weights may be negative, though the Gaussian is not: an output may
lie outside the range of values. Where the weights of a query nearly cancel, the denominator is
near 0 and the output far off. More directions make that rarer.
"""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.feature_maps.random_features import RandomFeatures


class Fourier(RandomFeatures):
    """Cosines and sines of random projections.

    Costs g d multiply-adds, g cosines and g sines a vector. For the arguments see
    `RandomFeatures`.
    """

    per_direction: ClassVar[int] = 2

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch c"]:
        angle = self.project(x)
        return torch.cat([angle.cos(), angle.sin()], dim=-1) * len(self.directions) ** -0.5
