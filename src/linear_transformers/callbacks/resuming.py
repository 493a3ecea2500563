"""Exact resumption: a resumed run has the batches and randomness of an uninterrupted one."""

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer


class StepSeed(Callback):
    """Seeds torch before each batch from (seed, step, batch, device).

    Dropout is then the same whether or not the run was interrupted, and differs between
    devices.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: torch.Tensor, batch_idx: int
    ) -> None:
        key = (self.seed, trainer.global_step, batch_idx, trainer.global_rank)
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))


class EpochPlace(Callback):
    """Resumes a run that was stopped within an epoch with the batches it has not seen."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = trainer.train_dataloader
        assert loader is not None
        # A finished epoch may have had another number of batches than this run's epochs.
        progress = trainer.fit_loop.epoch_loop.batch_progress
        loader.sampler.skip = 0 if progress.is_last_batch else progress.current.ready
