"""Who sees which image when, on one device and on several."""

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from linear_transformers.callbacks.resuming import EpochPlace
from linear_transformers.data.batches import BucketBatches, EpochBatches, EvaluationBatches


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_devices_share_an_epoch_without_overlap(world_size):
    seen = []
    for rank in range(world_size):
        batches = list(EpochBatches(103, 10, seed=0, rank=rank, world_size=world_size))
        assert all(len(batch) == 10 for batch in batches)
        assert len(batches) == 103 // (10 * world_size)
        seen += [index for batch in batches for index in batch]
    assert len(seen) == len(set(seen)) == 103 // (10 * world_size) * 10 * world_size


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = EpochBatches(50, 10, seed)
        batches.set_epoch(epoch)
        return list(batches)

    assert order(0, 3) == order(0, 3)
    assert order(0, 3) != order(0, 4)
    assert order(0, 3) != order(1, 3)


@pytest.mark.parametrize(
    ("num_items", "world_size"),
    [(n, w) for n in (1, 2, 3, 7, 16, 17, 180) for w in (1, 2, 3) if n >= w],
)
@pytest.mark.parametrize("size", [1, 4])
def test_evaluation_sees_everything_once_in_equally_many_batches(num_items, world_size, size):
    ranks = [
        list(EvaluationBatches(num_items, size, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    assert all(0 < len(batch) <= size + 1 for batches in ranks for batch in batches)
    assert sorted(i for batches in ranks for batch in batches for i in batch) == list(
        range(num_items)
    )


def lengths_of_as_many_batches() -> np.ndarray:
    """Lengths that make as many batches of 16,000 as two devices have of 8,000 each."""
    for seed in count():
        lengths = np.random.default_rng(seed).integers(50, 2000, 300)
        one, two = BucketBatches(lengths, 16_000, 0), BucketBatches(lengths, 8_000, 0, world_size=2)
        if len(one) == len(two):
            return lengths
    raise AssertionError


def within_an_epoch(sampler) -> SimpleNamespace:
    progress = SimpleNamespace(is_last_batch=False, current=SimpleNamespace(ready=3))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    loader = SimpleNamespace(sampler=sampler)
    return SimpleNamespace(train_dataloader=loader, fit_loop=loop, callback_metrics={})


@pytest.mark.parametrize("kind", ["images more", "devices for speech"])
def test_as_many_other_batches_do_not_go_on_within_an_epoch(kind, raises_one_line):
    """Some items would be seen twice, and others never."""
    if kind == "images more":
        before, now = EpochBatches(1003, 10, 0), EpochBatches(1009, 10, 0)
    else:
        lengths = lengths_of_as_many_batches()
        before = BucketBatches(lengths, 16_000, 0)
        now = BucketBatches(lengths, 8_000, 0, world_size=2)
    assert len(before) == len(now)
    first, second = EpochPlace(), EpochPlace()
    first.on_train_start(within_an_epoch(before), None)
    second.load_state_dict(first.state_dict())
    with raises_one_line("after 3 of the", "now they are others"):
        second.on_train_start(within_an_epoch(now), None)
    second.on_train_start(within_an_epoch(before), None)
    assert before.skip == 3


def test_earlier_checkpoints_have_the_number_of_batches_alone(raises_one_line):
    place = EpochPlace()
    place.load_state_dict({"batches": 10})
    place.on_train_start(within_an_epoch(EpochBatches(100, 10, 0)), None)
    place.load_state_dict({"batches": 10})
    with raises_one_line("of the 10 batches", "now an epoch has 20"):
        place.on_train_start(within_an_epoch(EpochBatches(200, 10, 0)), None)
