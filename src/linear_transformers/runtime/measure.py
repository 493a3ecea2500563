"""What a run costs: tokens a second, gradient norm, peak memory."""

import math
import resource
import sys
import time
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch.optim import Optimizer


class Performance(Callback):
    """Logs the figures every `log_every_n_steps`, and stops a run whose loss is no number."""

    def __init__(self) -> None:
        self.tokens = 0
        self.since = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # What happened between epochs, validation say, is not training.
        self.tokens, self.since = 0, time.perf_counter()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        if self._logs(trainer):
            gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            pl_module.log("train/gradient_norm", norm)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: torch.Tensor,
        batch_idx: int,
    ) -> None:
        self.tokens += batch.numel() * trainer.world_size
        if not self._logs(trainer):
            return
        loss = outputs["loss"].item()  # waits for the device: the time below is honest
        if not math.isfinite(loss):
            raise ValueError(
                f"The loss is {loss} at step {trainer.global_step}. Try a smaller optimizer.lr, "
                "trainer.gradient_clip_val=1, or debug=anomaly to see where it arises; the "
                f"last good checkpoint is in {trainer.default_root_dir}/checkpoints."
            )
        now = time.perf_counter()
        pl_module.log("perf/tokens_per_second", self.tokens / (now - self.since))
        pl_module.log("perf/peak_memory_gb", peak_memory(pl_module.device) / 1e9)
        self.tokens, self.since = 0, now

    def _logs(self, trainer: Trainer) -> bool:
        return (trainer.global_step + 1) % trainer.log_every_n_steps == 0  # pyright: ignore


def peak_memory(device: torch.device) -> int:
    """Bytes: the most that tensors took on a GPU, or that the process took on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident if sys.platform == "darwin" else 1024 * resident
