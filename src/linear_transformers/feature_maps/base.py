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


# Called with head_dim; one map per layer, since some maps have parameters of their own.
FeatureMapFactory = Callable[[int], FeatureMap]
