"""The end of a run that is told to stop: at the next place from which it continues exactly."""

from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging

from linear_transformers import stopping
from linear_transformers.runs.folder import Run


class StopAtSignal(Callback):
    """Saves and stops once a signal came, on all devices at the same batch.

    In training that is the end of an accumulation of gradients; in a validation, the end of a
    batch: the run continues with the whole validation. See `stopping` for the signals.

    Args:
        run: The run's folder.
    """

    def __init__(self, run: Run):
        self.run = run

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_if_told(trainer, save=False)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # An epoch's first batch always runs: before it, there is nothing that its end lacks.
        if batch_idx == 0 or batch_idx % trainer.accumulate_grad_batches or not _told(trainer):
            return
        loop, progress = trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_loop.batch_progress
        progress.current.ready -= 1  # this batch was fetched, and is seen by the next start
        progress.total.ready -= 1
        progress.is_last_batch = False  # nor is it over, if this one would have ended the epoch
        fetcher = trainer.fit_loop._data_fetcher
        if fetcher is not None and loop._should_check_val_fx(fetcher):
            loop._batches_that_stepped -= 1  # Lightning goes over the end of the one before again
        self._stop(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_validation(trainer, pl_module, begun=False)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._stop_validation(trainer, pl_module, begun=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_if_told(trainer)

    def _stop_validation(
        self, trainer: Trainer, pl_module: LightningModule, *, begun: bool
    ) -> None:
        if trainer.sanity_checking:
            self._stop_if_told(trainer, save=False)
        elif _told(trainer):
            callbacks: Any = trainer.callbacks if begun else ()  # pyright: ignore
            for callback in callbacks:
                if isinstance(callback, WeightAveraging):  # it validates the average, in place
                    callback.on_validation_epoch_end(trainer, pl_module)
            # As Lightning has it when the first batch fails: it goes back, and does them all.
            progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
            progress.reset()
            progress.increment_ready()
            progress.increment_started()
            self._stop(trainer)

    def _stop_if_told(self, trainer: Trainer, *, save: bool = True) -> None:
        if _told(trainer):
            self._stop(trainer, save=save)

    def _stop(self, trainer: Trainer, *, save: bool = True) -> None:
        if save:
            trainer.save_checkpoint(self.run.last_checkpoint)
        raise stopping.Stopped(stopping.noted() or stopping.ELSEWHERE)


def _told(trainer: Trainer) -> bool:
    """Return whether any device's process was told to stop: all of them ask at the same places."""
    told = stopping.noted() is not None
    if trainer.world_size == 1:
        return told
    return trainer.strategy.reduce_boolean_decision(told, all=False)
