"""The mixture of discretised logistics: Salimans et al. (2017), PixelCNN++, section 2.1.

Values 0 ... v-1 stand at equally spaced points x of [-1, 1], half a gap r = 1/(v-1) apart
from the edges of their bins. A logistic with mean mu and scale s gives a bin

    sigma(a) - sigma(b),    a = (x + r - mu) / s,    b = (x - r - mu) / s,

where the first bin reaches down to -infinity and the last up to +infinity, so that the
probabilities of all values sum to one exactly.
"""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.config.ranges import Size, ranged
from linear_transformers.distributions.base import ValueDistribution, check_temperature
from linear_transformers.distributions.categorical import invert_cdf
from linear_transformers.ops.precision import widened

WIDEST = 60.0  # log-scales: beyond it a bin is less than float32 can tell from 0


class LogisticMixture(ValueDistribution):
    """A mixture of k logistics; p = 3 k: logits, means, log-scales. The paper has k = 10.

    Args:
        num_values: The number of values, v, at least 2.
        num_components: The number of components, k.
        min_log_scale: The lower bound of log-scales: a scale of 0 has no gradient. The authors'
            code has -7, for 256 values.

    Raises:
        ValueError: There are fewer than 2 values or 1 component.
    """

    noise_dim: ClassVar[int] = 2  # one selects the component, one the value

    @ranged
    def __init__(
        self,
        num_values: Annotated[int, Ge(2), Le(2**20)],
        *,
        num_components: Size = 10,
        min_log_scale: Annotated[float, Ge(-WIDEST), Le(WIDEST)] = -7.0,
    ):
        self.num_values = num_values
        self.num_parameters = 3 * num_components
        self.min_log_scale = min_log_scale

    def log_prob(
        self, parameters: Float[Tensor, "*batch p"], values: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        self.check(parameters)
        logits, means, log_scales = self._split(parameters)
        half_gap = 1 / (self.num_values - 1)
        x = (2 * half_gap * values.to(means.dtype) - 1).unsqueeze(-1)
        inverse_scales = torch.exp(-log_scales)
        upper = (x + half_gap - means) * inverse_scales
        lower = (x - half_gap - means) * inverse_scales

        # sigma(a) - sigma(b) = sigma(a) sigma(-b) (1 - exp(b - a)): no difference of nearly
        # equal numbers, so no floor under the tails as in PixelCNN++.
        log_below_upper = F.logsigmoid(upper)
        log_above_lower = F.logsigmoid(-lower)
        log_width = torch.log(-torch.expm1(-2 * half_gap * inverse_scales))
        value = values.unsqueeze(-1)
        log_bin = torch.where(
            value == 0,
            log_below_upper,
            torch.where(
                value == self.num_values - 1,
                log_above_lower,
                log_below_upper + log_above_lower + log_width,
            ),
        )
        return torch.logsumexp(torch.log_softmax(logits, dim=-1) + log_bin, dim=-1)

    def sample(
        self,
        parameters: Float[Tensor, "*batch p"],
        noise: Float[Tensor, "*batch z"],
        *,
        temperature: float | Tensor = 1.0,
    ) -> Int[Tensor, "*batch"]:
        self.check(parameters, noise)
        check_temperature(temperature)
        logits, means, log_scales = self._split(parameters)
        chosen = invert_cdf(logits / temperature, noise[..., 0]).unsqueeze(-1)
        mean = means.gather(-1, chosen).squeeze(-1)
        scale = log_scales.gather(-1, chosen).squeeze(-1).exp() * temperature
        # Clamped: noise of 0 would give -infinity, whose cast to an integer is undefined.
        x = mean + scale * torch.logit(noise[..., 1].to(mean.dtype), eps=1e-7)
        level = torch.round((x + 1) / 2 * (self.num_values - 1))
        # NaN, whose cast is undefined too, draws 0, as from a categorical distribution.
        return level.clamp(0, self.num_values - 1).nan_to_num(0).long()

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # float32: differences of 1/256 vanish in 8 bits of mantissa.
        (wide,) = widened(parameters)
        logits, means, log_scales = wide.chunk(3, dim=-1)
        return logits, means, log_scales.clamp(self.min_log_scale, WIDEST)
