"""The base of tasks that predict each value of a sequence from those before it."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from linear_transformers.data.sequences import SequenceShape
from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer, Transformer
from linear_transformers.tasks.base import Task

Sequences = Integer[Tensor, "b t"]


class SequenceTask(Task):
    """Prediction of each value of a sequence from those before it.

    Args:
        shape: The shape of the sequences.
        model: Makes a stack of layers for sequences up to a length.
        distribution: Makes the distribution of a value from the number of values.

    Raises:
        ValueError: The stack has no recurrent form, or is not causal.
    """

    model: AutoregressiveTransformer

    def __init__(
        self,
        shape: SequenceShape,
        model: Callable[..., nn.Module],
        *,
        distribution: Callable[[int], ValueDistribution],
    ):
        self.distribution = distribution(shape.num_values)
        stack = model(max_length=shape.axes)
        if not isinstance(stack, Transformer):
            raise ValueError(
                f"{type(stack).__name__} is no causal stack of layers, and cannot draw values one "
                "by one. Choose another model, or speech data: data=espeak."
            )
        whole = AutoregressiveTransformer(
            stack,
            num_values=shape.num_values,
            num_parameters=self.distribution.num_parameters,
        )
        super().__init__(shape, whole)

    @property
    def description(self) -> str:
        return self.model.stack.description

    def kernel_on(self, device: torch.device) -> str:
        return self.model.stack.kernel_on(device)

    def cautions(self) -> list[str]:
        if self.model.stack.mixer.exactly_causal:
            return []
        return ["later values change earlier outputs: its figures are not valid likelihoods"]

    def positions_in(self, batch: Sequences) -> int:
        return batch.numel()

    def predict(self, batch: Sequences) -> tuple[Float[Tensor, "b t p"], Tensor]:
        """Return the parameters of each value's distribution, and the values [b, t]."""
        values = batch.long()
        return self.model(self.model.with_start(values)[:, :-1]), values
