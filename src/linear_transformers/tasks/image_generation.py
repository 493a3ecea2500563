"""Autoregressive modelling of images, value by value."""

import math
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from linear_transformers.tasks.base import Sequences, SequenceTask


class ImageGeneration(SequenceTask):
    """Autoregressive modelling of pixel intensities, row by row.

    The loss is in nats per dimension (a sub-pixel: one channel of one pixel), over all
    dimensions, the first included; reported as bits per dimension, nats / ln 2.
    """

    figure: ClassVar[str] = "bits_per_dim"
    unit: ClassVar[str] = "bits/dim"

    def training_step(self, batch: Sequences, batch_idx: int) -> Float[Tensor, ""]:
        nats = self._nats_per_dim(batch)
        self.log("train/bits_per_dim", bits_per_dim(nats.detach()), batch_size=len(batch))
        return nats

    def evaluate(self, stage: str, batch: Sequences) -> None:
        bits = bits_per_dim(self._nats_per_dim(batch))
        self.log(f"{stage}/bits_per_dim", bits, batch_size=len(batch), sync_dist=True)

    def _nats_per_dim(self, batch: Sequences) -> Float[Tensor, ""]:
        parameters, values = self.predict(batch)
        return -self.distribution.log_prob(parameters, values).mean()


def bits_per_dim(nats: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """nats / ln 2."""
    return nats / math.log(2)
