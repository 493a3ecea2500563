"""Which items make which batch, on each of several devices."""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice

import numpy as np
from torch.utils.data import Sampler


class TrainingBatches(Sampler[list[int]]):
    """Batches whose order is a function of (seed, epoch) and nothing else.

    Attributes:
        epoch: Whose order it is.
        skip: How many batches of it the next iteration, and no later one, leaves out: those that
            a run had seen when it was stopped.
    """

    epoch = 0
    skip = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch, after a resume too."""
        self.epoch = epoch

    @abstractmethod
    def batches(self) -> Iterator[list[int]]:
        """The epoch's, from the first."""

    def __iter__(self) -> Iterator[list[int]]:
        seen, self.skip = self.skip, 0
        yield from islice(self.batches(), seen, None)


class EpochBatches(TrainingBatches):
    """Batches of training indices, all of the same size.

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

    def __len__(self) -> int:
        return self.num_items // (self.batch_size * self.world_size)

    def batches(self) -> Iterator[list[int]]:
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


class BucketBatches(TrainingBatches):
    """Batches of items of like length, each within a budget of frames, padding included.

    Items are sorted into buckets by length once; an epoch shuffles each bucket, cuts it into
    batches, and shuffles those. Every epoch has equally many batches.

    Args:
        lengths: Of the items, in frames.
        budget: Frames of a batch, on each device. An item that alone is longer is a batch.
        seed: Of the order.
        rank: This device's.
        world_size: How many devices; what does not give each of them a batch waits for another
            epoch's order.
        variants: Every item comes in so many; an epoch takes each in one of them, by chance.
            What is yielded is item * variants + variant.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        budget: int,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        variants: int = 1,
    ):
        self.num_items = len(lengths)
        order = np.argsort(lengths, kind="stable")
        # As many as leave a few batches for each: the last of a bucket is not full.
        num_buckets = min(16, len(lengths), max(1, int(lengths.sum()) // (4 * budget)))
        parts = np.array_split(order, num_buckets)
        self.buckets = [(part, max(1, budget // int(lengths[part].max()))) for part in parts]
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.variants = variants

    def __len__(self) -> int:
        return sum(-(-len(part) // size) for part, size in self.buckets) // self.world_size

    def batches(self) -> Iterator[list[int]]:
        random = np.random.default_rng((self.seed, self.epoch))
        batches = [
            shuffled[start : start + size]
            for part, size in self.buckets
            for shuffled in (random.permutation(part),)
            for start in range(0, len(part), size)
        ]
        order = random.permutation(len(batches))
        variant = random.integers(self.variants, size=self.num_items)
        for place in range(self.rank, len(self) * self.world_size, self.world_size):
            batch = batches[order[place]]
            yield (batch * self.variants + variant[batch]).tolist()


class SortedBatches(Sampler[list[int]]):
    """Every item once over all devices, the shortest first, within a budget of frames, in equally
    many batches on each device: one with fewer would leave the others waiting for ever."""

    def __init__(self, lengths: np.ndarray, budget: int, *, rank: int = 0, world_size: int = 1):
        order = np.argsort(lengths, kind="stable")
        shares = [order[i::world_size].tolist() for i in range(world_size)]
        counts = [len(_cut(share, lengths, budget)) for share in shares]
        # No batch may be empty: a device with an item too few has them in larger batches.
        count = min(max(counts), *(len(share) for share in shares), len(lengths))
        self.batches = _cut(shares[rank], lengths, budget)
        while len(self.batches) < count:
            largest = max(range(len(self.batches)), key=lambda i: len(self.batches[i]))
            batch = self.batches[largest]
            half = len(batch) // 2
            self.batches[largest : largest + 1] = [batch[:half], batch[half:]]
        while len(self.batches) > count:
            self.batches[:2] = [self.batches[0] + self.batches[1]]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.batches


def _cut(items: list[int], lengths: np.ndarray, budget: int) -> list[list[int]]:
    """Items in rising order of length, cut wherever one more would break the budget."""
    batches: list[list[int]] = [[]]
    for item in items:
        if batches[-1] and (len(batches[-1]) + 1) * lengths[item] > budget:
            batches.append([])
        batches[-1].append(item)
    return batches
