"""What every distribution over values promises."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

LEAST_TEMPERATURE = 1e-30  # a logit divided by it stays within float32


class ValueDistribution(ABC):
    """A family of distributions over 0 ... num_values - 1, indexed by p parameters.

    Attributes:
        num_values: The number of values, v.
        num_parameters: The number of parameters of a value's distribution, p.
        noise_dim: The number of uniform numbers that one sample takes, z. Sampling is a function
            of parameters and noise, so a sample does not depend on the rest of the batch.
    """

    num_values: int
    num_parameters: int
    noise_dim: ClassVar[int]

    def check(self, parameters: Tensor, noise: Tensor | None = None) -> None:
        """Check that parameters, and noise, are of this distribution.

        Raises:
            ValueError: They are wider or narrower, or there is noise of others.
        """
        if parameters.shape[-1] != self.num_parameters:
            raise ValueError(
                f"{parameters.shape[-1]} parameters of a value were given; {type(self).__name__} "
                f"takes {self.num_parameters}."
            )
        if noise is not None and (noise.ndim, noise.shape[-1]) != (parameters.ndim, self.noise_dim):
            raise ValueError(
                f"Noise {list(noise.shape)} was given for parameters {list(parameters.shape)}. "
                f"Give {self.noise_dim} along the last axis for each value."
            )

    @abstractmethod
    def log_prob(
        self, parameters: Float[Tensor, "*batch p"], values: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """Return the log-probability of each value in nats, in float32 at least.

        Args:
            parameters: The model's output.
            values: The values, each below `num_values`: not checked, as that would wait for a GPU.

        Raises:
            ValueError: See `check`.
        """

    @abstractmethod
    def sample(
        self,
        parameters: Float[Tensor, "*batch p"],
        noise: Float[Tensor, "*batch z"],
        *,
        temperature: float | Tensor = 1.0,
    ) -> Int[Tensor, "*batch"]:
        """Return the value that uniform noise selects.

        Args:
            parameters: The model's output.
            noise: The `noise_dim` uniform numbers of each value, in [0, 1).
            temperature: The temperature: 1 samples the distribution; towards 0, its modes. As
                a tensor, in an exported graph, it is not checked.

        Raises:
            ValueError: The temperature is below 1e-30, or not finite; or see `check`.
        """


def check_temperature(temperature: float | Tensor) -> None:
    """Raise a ValueError unless the temperature is at least `LEAST_TEMPERATURE` and finite."""
    if isinstance(temperature, Tensor):
        return
    if not LEAST_TEMPERATURE <= temperature < math.inf:
        raise ValueError(
            f"temperature={temperature} was asked for; it must be above 0, {LEAST_TEMPERATURE:g} "
            "at least, and finite. 1 samples the model, 0.5 is more careful, 0.01 all but takes "
            "the most likely value."
        )
