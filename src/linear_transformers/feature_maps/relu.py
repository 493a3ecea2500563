"""phi(x) = relu(x). c = d."""

from jaxtyping import Float
from torch import Tensor

from linear_transformers.feature_maps.base import FeatureMap


class Relu(FeatureMap):
    """Sparse features, at the cost of d comparisons a vector.

    A query that shares no active feature with any key attends to nothing: its output is 0 (see
    `eps` in `ops.normalize`).
    """

    def __init__(self, head_dim: int):
        super().__init__()
        self.feature_dim = head_dim

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch c"]:
        return x.relu()
