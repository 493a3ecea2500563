"""What every distribution over values promises."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor


class ValueDistribution(ABC):
    """A family of distributions over 0 ... num_values - 1, indexed by p parameters.

    Attributes:
        num_values: How many values there are.
        num_parameters: p, what a model must output per value.
        noise_dim: How many uniform numbers one sample takes. Sampling is a function of
            parameters and noise, so that an image depends on its own noise only, never on
            its neighbours in the batch.
    """

    num_values: int
    num_parameters: int
    noise_dim: ClassVar[int]

    @abstractmethod
    def log_prob(
        self, parameters: Float[Tensor, "*batch p"], values: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """Log-probability of each value, in nats, in float32 at least."""

    @abstractmethod
    def sample(
        self,
        parameters: Float[Tensor, "*batch p"],
        noise: Float[Tensor, "*batch z"],
        *,
        temperature: float = 1.0,
    ) -> Int[Tensor, "*batch"]:
        """The value that `noise`, uniform on [0, 1), selects.

        Args:
            parameters: The model's output.
            noise: z = `noise_dim` uniform numbers a value.
            temperature: 1 samples the distribution; towards 0, its modes.

        Raises:
            ValueError: The temperature is not above 0.
        """


def check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"temperature={temperature} was asked for; it must be above 0, and finite. "
            "1 samples the model, 0.5 is more careful, 0.01 all but takes the most likely value."
        )
