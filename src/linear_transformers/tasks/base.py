"""What all tasks share: a model, the distribution it predicts, and how both are trained."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from jaxtyping import Float, UInt8
from lightning import LightningModule
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.tasks.schedules import ScheduleFactory

OptimizerFactory = Callable[[Iterator[Parameter]], Optimizer]
Sequences = UInt8[Tensor, "b t"]


class SequenceTask(LightningModule):
    """Predict each value of a sequence from those before it.

    Attributes:
        figure: What `val/` and `test/` figures judge a model by: the lower, the better.
        unit: What it is counted in.

    Args:
        model: Predicts each value's distribution from the values before it.
        distribution: What the model's output are the parameters of.
        optimizer: Makes the optimizer from the parameters.
        scheduler: Makes the learning rate's schedule; None keeps the optimizer's rate.
    """

    figure: ClassVar[str]
    unit: ClassVar[str]

    def __init__(
        self,
        model: AutoregressiveTransformer,
        distribution: ValueDistribution,
        *,
        optimizer: OptimizerFactory,
        scheduler: ScheduleFactory,
    ):
        super().__init__()
        self.model = model
        self.distribution = distribution
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler

    @abstractmethod
    def training_step(self, batch: Sequences, batch_idx: int) -> Float[Tensor, ""]:
        """The loss."""

    @abstractmethod
    def evaluate(self, stage: str, batch: Sequences) -> None:
        """Log the figures of a batch as `<stage>/<figure>`."""

    def validation_step(self, batch: Sequences, batch_idx: int) -> None:
        self.evaluate("val", batch)

    def test_step(self, batch: Sequences, batch_idx: int) -> None:
        self.evaluate("test", batch)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.model.parameters())
        schedule = self.make_scheduler(optimizer, self.trainer.estimated_stepping_batches)
        if schedule is not None and "monitor" in schedule:
            # Between validations there is nothing new to judge by.
            schedule["frequency"] = self.trainer.check_val_every_n_epoch or 1
        return optimizer if schedule is None else {"optimizer": optimizer, "lr_scheduler": schedule}

    def predict(self, batch: Sequences) -> tuple[Float[Tensor, "b t p"], Tensor]:
        """The parameters of each value's distribution, and the values [b, t]."""
        values = batch.long()
        return self.model(self.model.with_start(values)[:, :-1]), values
