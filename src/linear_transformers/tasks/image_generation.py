"""Autoregressive modelling of images, value by value."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from jaxtyping import Float, UInt8
from lightning import LightningModule
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.tasks.schedules import ScheduleFactory

OptimizerFactory = Callable[[Iterator[Parameter]], Optimizer]


class ImageGeneration(LightningModule):
    """Autoregressive modelling of pixel intensities, row by row.

    The loss is in nats per dimension (a sub-pixel: one channel of one pixel), over all
    dimensions, the first included; reported as bits per dimension, nats / ln 2.

    Args:
        model: Predicts each value's distribution from the values before it.
        distribution: What the model's output are the parameters of.
        optimizer: Makes the optimizer from the parameters.
        scheduler: Makes the learning rate's schedule; None keeps the optimizer's rate.
    """

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

    def training_step(self, batch: UInt8[Tensor, "b t"], batch_idx: int) -> Float[Tensor, ""]:
        nats = self._nats_per_dim(batch)
        self.log("train/bits_per_dim", bits_per_dim(nats.detach()), batch_size=len(batch))
        return nats

    def validation_step(self, batch: UInt8[Tensor, "b t"], batch_idx: int) -> None:
        self._log_evaluation("val/bits_per_dim", batch)

    def test_step(self, batch: UInt8[Tensor, "b t"], batch_idx: int) -> None:
        self._log_evaluation("test/bits_per_dim", batch)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.model.parameters())
        schedule = self.make_scheduler(optimizer, self.trainer.estimated_stepping_batches)
        if schedule is not None and "monitor" in schedule:
            # Between validations there is nothing new to judge by.
            schedule["frequency"] = self.trainer.check_val_every_n_epoch or 1
        return optimizer if schedule is None else {"optimizer": optimizer, "lr_scheduler": schedule}

    def _log_evaluation(self, name: str, batch: UInt8[Tensor, "b t"]) -> None:
        nats = self._nats_per_dim(batch)
        self.log(name, bits_per_dim(nats), batch_size=len(batch), sync_dist=True)

    def _nats_per_dim(self, batch: UInt8[Tensor, "b t"]) -> Float[Tensor, ""]:
        values = batch.long()
        parameters = self.model(self.model.with_start(values)[:, :-1])
        return -self.distribution.log_prob(parameters, values).mean()


def bits_per_dim(nats: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """nats / ln 2."""
    return nats / math.log(2)
