"""Which checkpoints a run keeps: the best and the last, each in a file of that name."""

import math
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from linear_transformers.config.ranges import Count, ranged
from linear_transformers.runs.folder import Run
from linear_transformers.tasks.base import Task


class _KeptCheckpoint(ModelCheckpoint):
    """A checkpoint kept in one file of the run's folder."""

    def __init__(self, path: Path, **options: Any):
        super().__init__(
            dirpath=path.parent, filename=path.stem, enable_version_counter=False, **options
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at where the run is validated, and therefore saved.

        Raises:
            ValueError: Within the batches of one step, whose gradients no checkpoint holds.
        """
        super().on_train_start(trainer, pl_module)
        interval, epoch = trainer.val_check_batch, trainer.num_training_batches
        step = trainer.accumulate_grad_batches
        across = trainer.check_val_every_n_epoch is None  # where an epoch ends within a step
        if not trainer.enable_validation or interval in (None, epoch, math.inf):
            return
        if not interval % step and not (across and epoch % step):
            return
        raise ValueError(
            f"trainer.val_check_interval={trainer.val_check_interval} validates and saves after "
            f"{interval} of {epoch} batches, within the {step} of a step "
            f"(trainer.accumulate_grad_batches={step}): a run could not go on from there. Give "
            f"a multiple of {step} batches"
            f"{', and such a number for trainer.limit_train_batches' if across else ''}."
        )

    @property
    def state_key(self) -> str:
        return type(self).__name__

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state; a run that was moved finds its own best checkpoint again."""
        if state_dict["monitor"] != self.monitor:
            return  # a score of another metric does not compare
        before, here = state_dict["dirpath"], str(self.dirpath)
        # Lightning forgets which checkpoint was best when the folder has another path.
        if Path(before).parent.name == Path(here).parent.name:
            moved = {
                name: value.replace(before, here) if isinstance(value, str) else value
                for name, value in state_dict.items()
            }
            best = state_dict["best_k_models"]
            state_dict = moved | {
                "best_k_models": {path.replace(before, here): best[path] for path in best}
            }
        path = state_dict["best_model_path"]
        if path and not Path(path).is_file():
            return  # its score would keep this run from having one
        super().load_state_dict(state_dict)


class BestCheckpoint(_KeptCheckpoint):
    """The checkpoint of the best validation: what is tested and sampled from.

    Args:
        run: The run's folder.
        task: The task, whose figure decides by default.
        monitor: The metric that decides instead.
        mode: Whether the least (`min`) or the most (`max`) of that metric is best.
    """

    def __init__(
        self,
        run: Run,
        task: Task,
        *,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
    ):
        own = monitor is None
        super().__init__(
            run.checkpoints / "best.ckpt",
            monitor=f"val/{task.figure.name}" if own else monitor,
            mode=task.figure.best if own else mode,
            save_on_train_epoch_end=False,  # but at once: whoever stops then knows of it
        )


class LastCheckpoint(_KeptCheckpoint):
    """The latest checkpoint: where a run is continued. There is one of the end, too.

    Args:
        run: The run's folder.
        every_n_epochs: The number of epochs between two checkpoints. Validations within an epoch
            have one each besides.
        every_n_train_steps: The number of steps between two checkpoints, instead of epochs.
    """

    @ranged
    def __init__(
        self, run: Run, *, every_n_epochs: Count = 1, every_n_train_steps: Count | None = None
    ):
        super().__init__(
            run.last_checkpoint,
            every_n_epochs=None if every_n_train_steps else every_n_epochs,
            every_n_train_steps=every_n_train_steps,
            save_on_train_epoch_end=True,  # whether or not there was a validation
        )
        self.by_steps = every_n_train_steps is not None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save every so many steps, unless they end an epoch, which is not counted yet."""
        if not _ends_epoch(trainer):
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save within an epoch, too: one epoch may be all of a run."""
        if not (_ends_epoch(trainer) or self.by_steps):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what `every_n_epochs` and `every_n_train_steps` would leave out: the end."""
        super().on_train_epoch_end(trainer, pl_module)
        epochs, steps = trainer.current_epoch + 1, trainer.global_step
        due = self.by_steps and steps % self._every_n_train_steps == 0
        if due or trainer.should_stop or epochs == trainer.max_epochs or steps == trainer.max_steps:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))


def _ends_epoch(trainer: Trainer) -> bool:
    """Return whether the batch that was trained on is the last of its epoch."""
    return trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
