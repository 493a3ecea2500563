"""Exact resumption: a resumed run has the batches and randomness of an uninterrupted one."""

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer

from linear_transformers.models import Transformer


class StepSeed(Callback):
    """Sets what is drawn at random in each batch, as a function of the seed and the batch.

    It is then the same whether or not the run was interrupted. Dropout's masks are those of the
    sample's place in the global batch, however that is divided over devices. What draws from
    torch's own generator (the masks of speech, LSTMs) differs between devices.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: torch.Tensor, batch_idx: int
    ) -> None:
        rank = trainer.global_rank
        key = (self.seed, trainer.global_step, batch_idx, rank)
        seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)
        # torch's own for all devices keeps the stack of its caller, which takes a millisecond.
        seeded = torch.default_generator if pl_module.device.type == "cpu" else torch
        seeded.manual_seed(seed)
        loader = trainer.train_dataloader
        assert loader is not None
        for module in pl_module.modules():
            if isinstance(module, Transformer):
                batch_number = trainer.fit_loop.epoch_loop.total_batch_idx
                module.draws.set(self.seed, batch_number, rank * loader.sampler.largest)


class EpochPlace(Callback):
    """Resumes a run that was stopped within an epoch with the batches it has not seen."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = trainer.train_dataloader
        assert loader is not None
        # A finished epoch may have had another number of batches than this run's epochs.
        progress = trainer.fit_loop.epoch_loop.batch_progress
        loader.sampler.skip = 0 if progress.is_last_batch else progress.current.ready
