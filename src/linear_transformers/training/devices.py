"""Devices that divide sequences among themselves, and not batches."""

from lightning import Trainer
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry


class SequenceParallel(DDPStrategy):
    """All devices have the same batch, and of each sequence a piece: see `ops.pieces`.

    Gradients are averaged over devices as those of other batches are: they are of sums over pieces.
    """


StrategyRegistry.register("sequence_parallel", SequenceParallel)


def share_of(trainer: Trainer) -> tuple[int, int]:
    """Return the number of this device among those that divide batches, and how many do."""
    if isinstance(trainer.strategy, SequenceParallel):
        return 0, 1
    return trainer.global_rank, trainer.world_size
