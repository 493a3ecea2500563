"""Who sees which image when, on one device and on several."""

import pytest

from linear_transformers.data.batches import EpochBatches, EvaluationBatches


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
