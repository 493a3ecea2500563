"""Callbacks that send this very process a signal, wait for one, or fail, at a place that can be
repeated."""

import os
import signal
import time
from typing import Any

from lightning import Callback, LightningModule, Trainer

from linear_transformers import stopping


class SignalAt(Callback):
    """Sends a signal when a hook is called for the n-th time.

    Args:
        hook: The name of the hook.
        n: The number of the call, from 1.
        name: The name of the signal.
        rank: The number of the process that gets it.
    """

    def __init__(self, *, hook: str, n: int = 1, name: str = "SIGTERM", rank: int = 0):
        self.hook = hook if rank == int(os.environ.get("LOCAL_RANK", "0")) else ""
        self.left = n
        self.number = signal.Signals[name]

    def _at(self, hook: str) -> None:
        if hook == self.hook:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.number)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._at("sanity_check_start")

    def on_train_batch_end(self, *given: Any) -> None:
        self._at("train_batch_end")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._at("validation_start")

    def on_validation_batch_start(self, *given: Any) -> None:
        self._at("validation_batch_start")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._at("validation_epoch_end")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._at("train_epoch_end")

    def on_test_batch_start(self, *given: Any) -> None:
        self._at("test_batch_start")


class FailAt(Callback):
    """Fails on one device, as one that lacks memory does.

    Args:
        step: The step.
        rank: The number of the device.
    """

    def __init__(self, *, step: int, rank: int):
        self.step = step
        self.rank = rank

    def on_train_batch_end(self, trainer: Trainer, *given: Any) -> None:
        if trainer.global_step == self.step and trainer.global_rank == self.rank:
            raise ValueError(f"told to fail on device {self.rank}")


class WaitAt(Callback):
    """Waits for a signal, in a job that Slurm has not yet started again.

    Args:
        step: The step.
    """

    def __init__(self, *, step: int):
        self.step = -1 if "SLURM_RESTART_COUNT" in os.environ else step

    def on_train_batch_end(self, trainer: Trainer, *given: Any) -> None:
        if trainer.global_step == self.step:
            print(f"waits at step {self.step}", flush=True)
            while stopping.noted() is None:
                time.sleep(0.05)
