"""One free probability per value."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.distributions.base import ValueDistribution, check_temperature


class Categorical(ValueDistribution):
    """softmax(parameters): p = num_values logits."""

    noise_dim: ClassVar[int] = 1

    def __init__(self, num_values: int):
        self.num_values = num_values
        self.num_parameters = num_values

    def log_prob(
        self, parameters: Float[Tensor, "*batch p"], values: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        log_probs = torch.log_softmax(_wide(parameters), dim=-1)
        return log_probs.gather(-1, values.unsqueeze(-1)).squeeze(-1)

    def sample(
        self,
        parameters: Float[Tensor, "*batch p"],
        noise: Float[Tensor, "*batch z"],
        *,
        temperature: float = 1.0,
    ) -> Int[Tensor, "*batch"]:
        check_temperature(temperature)
        return invert_cdf(_wide(parameters) / temperature, noise[..., 0])


def invert_cdf(
    logits: Float[Tensor, "*batch v"], noise: Float[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """The smallest index whose cumulative probability exceeds the noise."""
    cdf = torch.softmax(logits, dim=-1).cumsum(-1)
    # Rounding may leave the last sum below 1: noise above it still means the last index.
    return (cdf[..., :-1] <= noise.unsqueeze(-1)).sum(-1)


def _wide(parameters: Tensor) -> Tensor:
    return parameters if parameters.dtype == torch.float64 else parameters.float()
