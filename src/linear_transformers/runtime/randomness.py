"""Randomness that a resumed run shares with the run it resumes."""

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
