"""The cost of a run: tokens per second, model FLOP utilisation, memory."""

import copy
import time
from typing import Any, NoReturn

import torch
from lightning import Callback, LightningModule, Trainer
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from linear_transformers.tasks.base import Task
from linear_transformers.training.module import Training, all_finite
from linear_transformers.training.peaks import peak_flops, peak_memory


class Performance(Callback):
    """Logs the figures every `log_every_n_steps`, and stops a run whose loss is not finite.

    `perf/model_flop_utilization` is the model's FLOPs per second, forward and backward, over
    those of a large matrix product on the same device in the same precision. That peak is
    measured as training starts, since no program reaches the data sheet's.
    """

    def __init__(self) -> None:
        self.tokens: int | torch.Tensor = 0
        self.since = self.validation_start = 0.0
        self.epoch_start: float | None = None  # unknown if a run resumes within an epoch
        self.step = 0
        self.loss: torch.Tensor | None = None
        self.flops_per_token = 0.0
        self.peak_flops = 1.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Training)
        self.flops_per_token = training_flops_per_token(pl_module.task)
        self.peak_flops = peak_flops(pl_module.device, str(trainer.precision))
        self._restart(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epoch_start = time.perf_counter()
        self._restart(trainer)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        if self._due(trainer, trainer.global_step + 1):
            gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
            pl_module.log("train/gradient_norm", torch.nn.utils.get_total_norm(gradients))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, Training)
        self.tokens += pl_module.task.positions_in(batch) * trainer.world_size
        self.loss = outputs["loss"]
        # With accumulated gradients most batches are no step.
        if trainer.global_step == self.step or not self._due(trainer, trainer.global_step):
            return
        self._check_loss(trainer)  # waits for the device, so that the time below is complete
        seconds = time.perf_counter() - self.since
        rate = float(self.tokens) / seconds
        flops = rate * self.flops_per_token / trainer.world_size
        figures = {
            "perf/tokens_per_second": rate,
            "perf/model_flop_utilization": flops / self.peak_flops,
            "perf/peak_memory_gb": peak_memory(pl_module.device) / 1e9,
        }
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=trainer.global_step - 1)
        self._restart(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_loss(trainer, weights=True)  # before pictures are drawn from them
        self.validation_start = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, value in trainer.callback_metrics.items():
            if name.startswith("val/") and not value.isfinite():
                self._stop(trainer, name)
        # Validation is not training.
        if self.epoch_start is not None:
            self.epoch_start += time.perf_counter() - self.validation_start
        self._restart(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_loss(trainer)
        whole = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if self.epoch_start is None or not whole:  # trainer.max_steps, say, ends within one
            return
        seconds = time.perf_counter() - self.epoch_start
        for logger in trainer.loggers:
            logger.log_metrics({"perf/seconds_per_epoch": seconds}, step=trainer.global_step - 1)

    def _restart(self, trainer: Trainer) -> None:
        self.tokens, self.since, self.step = 0, time.perf_counter(), trainer.global_step

    def _due(self, trainer: Trainer, step: int) -> bool:
        every: int = trainer.log_every_n_steps  # pyright: ignore
        return every > 0 and step % every == 0

    def _check_loss(self, trainer: Trainer, *, weights: bool = False) -> None:
        good = self.loss is None or bool(self.loss.isfinite())
        # All devices stop, or none: one alone would leave the others waiting.
        if not trainer.strategy.reduce_boolean_decision(good, all=True):
            self._stop(trainer, "train/loss")
        if weights and not all_finite([*trainer.lightning_module.parameters()]):
            self._stop(trainer, "a weight")

    def _stop(self, trainer: Trainer, name: str) -> NoReturn:
        assert isinstance(trainer.lightning_module, Training)
        raise trainer.lightning_module.not_finite(name)


def training_flops_per_token(task: Task) -> float:
    """Return the FLOPs of matrix products, forward and backward, per position of a usual sequence.

    What is recomputed to save memory does not count.
    """
    model = copy.deepcopy(task.model).to("meta")  # shapes alone: nothing is computed
    for module in model.modules():
        if getattr(module, "activation_checkpointing", False):
            module.activation_checkpointing = False
    with torch.autograd.set_detect_anomaly(False), FlopCounterMode(display=False) as counter:
        scores, positions = task.trial(model)
        scores.sum().backward()
    return counter.get_total_flops() / positions
