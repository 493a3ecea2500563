"""Copying a word, symbol by symbol: Katharopoulos et al. (2020), section 4.1."""

from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from linear_transformers.distributions import Categorical, ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.tasks.base import OptimizerFactory, Sequences, SequenceTask
from linear_transformers.tasks.schedules import ScheduleFactory


class Copying(SequenceTask):
    """Words `w separator w padding`: the copy is all that counts, since the word is random.

    The loss is in nats a copied symbol; accuracy is the share of copied symbols that are the
    most likely ones, each given the true ones before it.

    Args:
        model: See `SequenceTask`.
        distribution: Of num_symbols + 2 values, the last of them separator and padding.
        optimizer: See `SequenceTask`.
        scheduler: See `SequenceTask`.

    Raises:
        ValueError: The distribution is not categorical: symbols have no order.
    """

    figure: ClassVar[str] = "loss"
    unit: ClassVar[str] = "nats a symbol"

    def __init__(
        self,
        model: AutoregressiveTransformer,
        distribution: ValueDistribution,
        *,
        optimizer: OptimizerFactory,
        scheduler: ScheduleFactory,
    ):
        if not isinstance(distribution, Categorical):
            raise ValueError("Copied symbols have no order: use task/distribution=categorical.")
        super().__init__(model, distribution, optimizer=optimizer, scheduler=scheduler)
        self.separator, self.padding = distribution.num_values - 2, distribution.num_values - 1

    def training_step(self, batch: Sequences, batch_idx: int) -> Float[Tensor, ""]:
        loss, _, count = self._copied(batch)
        self.log("train/loss", loss.detach(), batch_size=count)
        return loss

    def evaluate(self, stage: str, batch: Sequences) -> None:
        loss, accuracy, count = self._copied(batch)
        # Weighed by the symbols of a batch: the figure is a mean over symbols.
        self.log(f"{stage}/loss", loss, batch_size=count, sync_dist=True)
        self.log(f"{stage}/accuracy", accuracy, batch_size=count, sync_dist=True)

    def _copied(self, batch: Sequences) -> tuple[Tensor, Tensor, int]:
        """Loss and accuracy over the copied symbols, and how many there are."""
        parameters, values = self.predict(batch)
        copied = self.is_copy(batch)
        parameters, values = parameters[copied], values[copied]
        loss = -self.distribution.log_prob(parameters, values).mean()
        return loss, (parameters.argmax(-1) == values).float().mean(), len(values)

    def is_copy(self, batch: Sequences) -> Bool[Tensor, "b t"]:
        """Which values are symbols after the separator."""
        after = (batch == self.separator).long().cumsum(1) == 1
        return after & (batch < self.separator)
