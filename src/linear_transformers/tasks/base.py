"""What all tasks share: a model, what it is judged by, and how it is trained."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from jaxtyping import Float, UInt8
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.tasks.schedules import ScheduleFactory

OptimizerFactory = Callable[[Iterator[Parameter]], Optimizer]
Sequences = UInt8[Tensor, "b t"]


class Task(LightningModule):
    """A model with its loss, figures and optimizer.

    Attributes:
        figure: What `val/` and `test/` figures judge a model by: the lower, the better.
        unit: What it is counted in.

    Args:
        model: What is trained. `model.example()` is an input of usual size.
        optimizer: Makes the optimizer from the parameters.
        scheduler: Makes the learning rate's schedule; None keeps the optimizer's rate.
    """

    figure: ClassVar[str]
    unit: ClassVar[str]

    def __init__(
        self, model: nn.Module, *, optimizer: OptimizerFactory, scheduler: ScheduleFactory
    ):
        super().__init__()
        self.model: Any = model
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler

    @abstractmethod
    def training_step(self, batch: Any, batch_idx: int) -> Float[Tensor, ""]:
        """The loss."""

    @abstractmethod
    def evaluate(self, stage: str, batch: Any) -> None:
        """Log the figures of a batch as `<stage>/<figure>`."""

    @abstractmethod
    def positions_in(self, batch: Any) -> int | Tensor:
        """How many positions of sequences a batch has: what a rate of training counts."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate("test", batch)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.model.parameters())
        schedule = self.make_scheduler(optimizer, self.trainer.estimated_stepping_batches)
        if schedule is None:
            return optimizer
        if "monitor" in schedule:
            schedule["monitor"] = schedule["monitor"] or f"val/{self.figure}"
            # Between validations there is nothing new to judge by.
            schedule["frequency"] = self.trainer.check_val_every_n_epoch or 1
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class SequenceTask(Task):
    """Predict each value of a sequence from those before it.

    Args:
        model: Predicts each value's distribution from the values before it.
        distribution: What the model's output are the parameters of.
        optimizer: See `Task`.
        scheduler: See `Task`.
    """

    model: AutoregressiveTransformer

    def __init__(
        self,
        model: AutoregressiveTransformer,
        distribution: ValueDistribution,
        *,
        optimizer: OptimizerFactory,
        scheduler: ScheduleFactory,
    ):
        super().__init__(model, optimizer=optimizer, scheduler=scheduler)
        self.distribution = distribution

    def positions_in(self, batch: Sequences) -> int:
        return batch.numel()

    def predict(self, batch: Sequences) -> tuple[Float[Tensor, "b t p"], Tensor]:
        """The parameters of each value's distribution, and the values [b, t]."""
        values = batch.long()
        return self.model(self.model.with_start(values)[:, :-1]), values
