"""phi(x) = elu(x) + 1: eq. 7 of Katharopoulos et al. (2020). c = d."""

from jaxtyping import Float
from torch import Tensor

from linear_transformers.feature_maps.base import FeatureMap


class Elu(FeatureMap):
    """Positive features: x + 1 for x > 0, exp(x) for x <= 0. Costs d exponentials a vector."""

    def __init__(self, head_dim: int):
        super().__init__()
        self.feature_dim = head_dim

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch c"]:
        # (exp(x) - 1) + 1 would cancel: bf16 gives 0 at x = -8, where 3.4e-4 is right.
        # x - relu, not clamp or a mask: clamp's gradient at exactly 0 is 0, where 1 is right, and
        # masks are several times slower on a CPU.
        above = x.relu()
        return (x - above).exp() + above
