"""Which images make which batch, on each of several devices."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler


class EpochBatches(Sampler[list[int]]):
    """Batches of training indices. The order is a function of (seed, epoch) and nothing else.

    Every device sees its own part of each global batch; what does not fill a global batch
    waits for another epoch's order.
    """

    def __init__(
        self, num_items: int, batch_size: int, seed: int, *, rank: int = 0, world_size: int = 1
    ):
        self.num_items = num_items
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch, after a resume too."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_items // (self.batch_size * self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.num_items)
        used = order[: len(self) * self.batch_size * self.world_size]
        for batch in used.reshape(len(self), self.world_size, self.batch_size):
            yield batch[self.rank].tolist()


class EvaluationBatches(Sampler[list[int]]):
    """Every index once over all devices, in equally many batches on each.

    Padding with repeats, as samplers for training do, would count some images twice; a
    different number of batches would leave one device waiting for the others for ever.
    """

    def __init__(self, num_items: int, batch_size: int, *, rank: int = 0, world_size: int = 1):
        self.indices = np.arange(rank, num_items, world_size)
        largest_share = -(-num_items // world_size)
        # No batch may be empty on any device: the mean over nothing is NaN. Where shares
        # differ by one image, a batch may have one more than `batch_size` instead.
        self.num_batches = min(-(-largest_share // batch_size), num_items // world_size)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in np.array_split(self.indices, self.num_batches):
            yield batch.tolist()
