"""What every feature map promises."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn


class FeatureMap(nn.Module, ABC):
    """phi, applied to each query and key on its own.

    Attributes:
        feature_dim: c, the width of phi(x) for x of width d = `head_dim`.
    """

    feature_dim: int

    @abstractmethod
    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch c"]:
        """Return phi(x), computed in the type of `x`."""


class ProductMap(FeatureMap):
    """A map for which phi(q) . phi(k) is a function of q . k: it can do without its features."""

    @abstractmethod
    def of_products(self, products: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """Return phi(q) . phi(k), given q . k."""


# Called with head_dim; one map per layer, since some maps have parameters of their own.
FeatureMapFactory = Callable[[int], FeatureMap]
