"""The base of tasks that predict each value of a sequence from those before it."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Integer, Shaped
from torch import Tensor, nn

from linear_transformers.data.sequences import SequenceShape
from linear_transformers.distributions import Categorical, ValueDistribution
from linear_transformers.models import AutoregressiveTransformer, Transformer
from linear_transformers.ops.pieces import Place
from linear_transformers.tasks.base import Task

Sequences = Integer[Tensor, "b t"]


class SequenceTask(Task):
    """Prediction of each value of a sequence from those before it.

    Args:
        shape: The shape of the sequences.
        model: Makes a stack of layers for sequences up to a length.
        distribution: Makes the distribution of a value from the number of values.

    Raises:
        ValueError: The stack has no recurrent form, or is not causal; or values have no order, and
            the distribution is not categorical.
    """

    unordered: ClassVar[str | None] = None  # what values are, where they have no order
    model: AutoregressiveTransformer
    place = Place(0, 1)  # of this device among those that sequences are cut over

    def __init__(
        self,
        shape: SequenceShape,
        model: Callable[..., nn.Module],
        *,
        distribution: Callable[[int], ValueDistribution],
    ):
        self.distribution = distribution(shape.num_values)
        if self.unordered and not isinstance(self.distribution, Categorical):
            raise ValueError(f"{self.unordered} have no order: use task/distribution=categorical.")
        stack = model(max_length=shape.axes)
        if not isinstance(stack, Transformer):
            raise ValueError(
                f"{type(stack).__name__} is no causal stack of layers, and cannot draw values one "
                "by one. Choose another model, or speech data: data=espeak."
            )
        if not shape.bounded:
            stack.positions.unbind()
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
        if self.model.stack.exactly_causal:
            return []
        return ["later values change earlier outputs: its figures are not valid likelihoods"]

    def cut(self, place: Place) -> None:
        whole = [mixer for mixer in self.model.stack.mixers if not mixer.divisible]
        if whole:
            raise ValueError(
                f"{whole[0].name} has no state that adds up over pieces of a sequence, which "
                "trainer=sequence_parallel needs. Use model=linear, linear_conv, gated or delta, "
                "or trainer=ddp, which divides batches."
            )
        place.piece(self.shape.length)  # long enough for all devices
        self.place = place

    def here(self, whole: Shaped[Tensor, "b t"]) -> Shaped[Tensor, "b piece"]:
        """Return what this device has of whole sequences: all, unless they are cut."""
        return self.place.piece(whole.shape[1]).of(whole)

    def positions_in(self, batch: Any) -> int | Tensor:
        return self.here(batch).numel()

    def predict(self, batch: Sequences) -> tuple[Float[Tensor, "b t p"], Tensor]:
        """Return the parameters of each value's distribution, and the values [b, t], here."""
        values = batch.long()
        tokens = self.model.with_start(values)[:, :-1]
        piece = self.place.piece(values.shape[1]) if self.place.devices > 1 else None
        return self.model(self.here(tokens), piece), self.here(values)
