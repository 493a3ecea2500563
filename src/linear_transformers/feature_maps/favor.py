"""FAVOR+: E[phi(q) . phi(k)] = exp(q . k / sqrt(d)), as in softmax, with positive features.

    phi(x) = exp(w . x' - |x'|^2 / 2) / sqrt(g) for g directions w, x' = x / d^(1/4);  c = g

Choromanski et al. (2021), "Rethinking Attention with Performers", lemma 1. Unbiased; its error
falls as 1/sqrt(g) and grows with the norms of q and k, as exp(|q' + k'|^2) does.
"""

import math

from jaxtyping import Float
from torch import Tensor

from linear_transformers.feature_maps.random_features import RandomFeatures


class Favor(RandomFeatures):
    """Positive orthogonal random features. A key of large norm has next to no weight.

    Nor has a query: where both are some 2 sqrt(d) long, weights are below the default `eps` of
    linear attention, and outputs near 0. There, eps=1e-30 makes them means again.

    Costs g d multiply-adds and g exponentials a vector. For the arguments see `RandomFeatures`.
    """

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch c"]:
        # No maximum is subtracted, as the authors' code does over all keys: a past output
        # would depend on the future, and `step` could not do it.
        half_square = x.square().sum(-1, keepdim=True) * (0.5 / math.sqrt(x.shape[-1]))
        return (self.project(x) - half_square).exp() * self.feature_dim**-0.5
