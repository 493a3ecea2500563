"""A categorical distribution: one logit per value."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.config.ranges import Size, ranged
from linear_transformers.distributions.base import ValueDistribution, check_temperature
from linear_transformers.ops.precision import widened


class Categorical(ValueDistribution):
    """The distribution softmax(parameters), with p = num_values logits."""

    noise_dim: ClassVar[int] = 1

    @ranged
    def __init__(self, num_values: Size):
        self.num_values = num_values
        self.num_parameters = num_values

    def log_prob(
        self, parameters: Float[Tensor, "*batch p"], values: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        self.check(parameters)
        (logits,) = widened(parameters)
        log_probs = torch.log_softmax(logits, dim=-1)
        return log_probs.gather(-1, values.unsqueeze(-1)).squeeze(-1)

    def sample(
        self,
        parameters: Float[Tensor, "*batch p"],
        noise: Float[Tensor, "*batch z"],
        *,
        temperature: float | Tensor = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
    ) -> Int[Tensor, "*batch"]:
        """Return the value that uniform noise selects; see `ValueDistribution.sample`.

        Args:
            parameters: The logits.
            noise: The uniform number of each value, in [0, 1).
            temperature: The divisor of the logits, applied before `top_k` and `top_p`.
            top_k: The number of most likely values to sample from (ties with the k-th included).
            top_p: The total probability of the most likely values to sample from: nucleus
                sampling (Holtzman et al., 2020).

        Raises:
            ValueError: An option is out of its range; or see `check`.
        """
        self.check(parameters, noise)
        check_temperature(temperature)
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k={top_k} was asked for; it must be at least 1.")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p={top_p} was asked for; it must be above 0 and at most 1.")
        (logits,) = widened(parameters)
        logits = logits / temperature
        if top_k is not None and top_k < self.num_values:
            least = logits.topk(top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -math.inf)
        if top_p < 1:
            logits = _nucleus(logits, top_p)
        return invert_cdf(logits, noise[..., 0])


def _nucleus(logits: Float[Tensor, "*batch v"], top_p: float) -> Float[Tensor, "*batch v"]:
    """Mask all but the fewest most likely values whose probabilities reach `top_p`."""
    probabilities, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    reached_before = probabilities.cumsum(-1) - probabilities >= top_p
    masked = torch.zeros_like(reached_before).scatter(-1, order, reached_before)
    return logits.masked_fill(masked, -math.inf)


def invert_cdf(
    logits: Float[Tensor, "*batch v"], noise: Float[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """Return the smallest index whose cumulative probability exceeds the noise."""
    cdf = torch.softmax(logits, dim=-1).cumsum(-1)
    # Rounding may leave the last sum below 1. Divided by it, the sums of the last possible value
    # and of masked values after it are exactly 1, so noise below 1 selects none of the latter.
    return (cdf / cdf[..., -1:] <= noise.unsqueeze(-1)).sum(-1)
