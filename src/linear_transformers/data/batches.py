"""Samplers of batches, on each of several devices, and loaders over them."""

import atexit
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from linear_transformers.stopping import left_to_parent


class TrainingBatches(Sampler[list[Any]]):
    """Batches of training items, whose order is a function of (seed, epoch) and nothing else.

    Attributes:
        largest: The number of items of the largest batch on one device.
        seed: The seed.
        epoch: The epoch whose order is yielded.
        skip: The number of batches that the next iteration leaves out, once: those that a run
            had seen when it was stopped.
    """

    largest: int
    seed: int
    epoch = 0
    skip = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. The trainer calls this before each epoch, after a resume too."""
        self.epoch = epoch

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of an epoch, on each device."""

    @property
    def plan(self) -> list[int]:
        """A fingerprint of the batches of one seed, over all devices: their number first, then
        whatever else they depend on."""
        return [len(self)]

    @abstractmethod
    def batches(self) -> Iterator[list[Any]]:
        """Yield the batches of the epoch, from the first."""

    def __iter__(self) -> Iterator[list[Any]]:
        seen, self.skip = self.skip, 0
        yield from islice(self.batches(), seen, None)


class EpochBatches(TrainingBatches):
    """Batches of training indices, all of the same size.

    Each device gets its own part of a global batch. Items that do not fill a global batch are
    left out of the epoch.
    """

    def __init__(
        self, num_items: int, batch_size: int, seed: int, *, rank: int = 0, world_size: int = 1
    ):
        self.num_items = num_items
        self.batch_size = self.largest = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        return self.num_items // (self.batch_size * self.world_size)

    @property
    def plan(self) -> list[int]:
        return [len(self), self.num_items, self.batch_size * self.world_size]

    def batches(self) -> Iterator[list[int]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.num_items)
        used = order[: len(self) * self.batch_size * self.world_size]
        for batch in used.reshape(len(self), self.world_size, self.batch_size):
            yield batch[self.rank].tolist()


class EvaluationBatches(Sampler[list[int]]):
    """Every index once over all devices, in equally many batches on each.

    Padding with repeats would count some items twice. With unequal numbers of batches, devices
    would wait for each other for ever.
    """

    def __init__(self, num_items: int, batch_size: int, *, rank: int = 0, world_size: int = 1):
        self.indices = np.arange(rank, num_items, world_size)
        largest_share = -(-num_items // world_size)
        # No batch may be empty on any device: the mean over nothing is NaN. Where shares
        # differ by one item, a batch may have one more than `batch_size` instead.
        self.num_batches = min(-(-largest_share // batch_size), num_items // world_size)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in np.array_split(self.indices, self.num_batches):
            yield batch.tolist()


class BucketBatches(TrainingBatches):
    """Batches of items of similar length, each within a budget of frames, padding included.

    Items are sorted into buckets by length once; an epoch shuffles each bucket, cuts it into
    batches, and shuffles those. Every epoch has the same number of batches.

    Args:
        lengths: The lengths of the items, in frames.
        budget: The largest number of frames in a batch, on each device. A longer item is a batch.
        seed: The seed of the order.
        rank: The rank of the device.
        world_size: The number of devices. Batches that do not suffice for all of them are left
            out of the epoch.
        variants: The number of variants of an item. An epoch takes a random one of each, and
            yields item * variants + variant.
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
        # Few enough for several batches each: the last batch of a bucket is not full.
        num_buckets = min(16, len(lengths), max(1, int(lengths.sum()) // (4 * budget)))
        parts = np.array_split(order, num_buckets)
        self.buckets = [(part, max(1, budget // int(lengths[part].max()))) for part in parts]
        self.largest = max(min(size, len(part)) for part, size in self.buckets)
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.variants = variants

    def __len__(self) -> int:
        return sum(-(-len(part) // size) for part, size in self.buckets) // self.world_size

    @property
    def plan(self) -> list[int]:
        sizes = [number for part, size in self.buckets for number in (len(part), size)]
        items = np.concatenate([part for part, _ in self.buckets])
        digest = crc32(np.array([*sizes, *items]).tobytes())
        return [len(self), digest, self.variants, self.world_size]

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
    """Every item once over all devices, the shortest first, within a budget of frames.

    Each device has the same number of batches: otherwise some would wait for ever.
    """

    def __init__(self, lengths: np.ndarray, budget: int, *, rank: int = 0, world_size: int = 1):
        order = np.argsort(lengths, kind="stable")
        shares = [order[i::world_size].tolist() for i in range(world_size)]
        counts = [len(_cut(share, lengths, budget)) for share in shares]
        # No batch may be empty: if a device has too few items, all have fewer, larger batches.
        count = min(max(counts), len(lengths) // world_size)
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


def loader_of(items: Dataset[Any], batches: Sampler[Any], *, workers: int = 0) -> DataLoader:
    """Return a loader whose `items` are indexed by whole batches.

    Args:
        items: The items.
        batches: The indices of each batch.
        workers: The number of processes that make batches; 0 where nothing is computed.
    """
    return _Loader(
        items,
        batch_size=None,  # the sampler's items are whole lists of indices
        sampler=batches,
        pin_memory=torch.cuda.is_available(),
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=left_to_parent,
    )


class _Loader(DataLoader):
    """A loader whose workers start at the first batch, since the trainer makes the iterator before
    it sets the epoch. An error of theirs stays one line."""

    def __iter__(self) -> Any:
        # Before multiprocessing's own ending, which sends signals that workers leave to us, and
        # waits. By reference: a loader that is let go ends its workers itself.
        if self.num_workers > 0 and self._iterator is None:  # the first of many epochs
            atexit.register(_end_workers, weakref.ref(self))
        for batch in super().__iter__():
            if isinstance(batch, ValueError):
                raise batch
            yield batch


def _end_workers(loader: weakref.ref[_Loader]) -> None:
    iterator: Any = getattr(loader(), "_iterator", None)
    if iterator is not None:
        iterator._shutdown_workers()


def _cut(items: list[int], lengths: np.ndarray, budget: int) -> list[list[int]]:
    """Cut items, in rising order of length, wherever one more would exceed the budget."""
    batches: list[list[int]] = [[]]
    for item in items:
        if batches[-1] and (len(batches[-1]) + 1) * lengths[item] > budget:
            batches.append([])
        batches[-1].append(item)
    return batches
