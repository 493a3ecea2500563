"""Exact resumption: a resumed run has the batches and randomness of an uninterrupted one."""

from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.loop import _Loop

from linear_transformers.models import Transformer
from linear_transformers.training.devices import share_of


class StepSeed(Callback):
    """Sets what is drawn at random in each batch, as a function of the seed and the batch.

    It is then the same whether or not the run was interrupted. A batch has its place in the global
    batch, of all devices and all batches whose gradients are accumulated. Dropout's masks are
    those of the sample's place in it, however it is divided. What draws from torch's own generator
    (the masks of speech, LSTMs) is the same for the same division into batches, over devices or
    one after the other.
    """

    def __init__(self, seed: int):
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: torch.Tensor, batch_idx: int
    ) -> None:
        step, accumulated = divmod(batch_idx, trainer.accumulate_grad_batches)
        rank, devices = share_of(trainer)
        place = accumulated * devices + rank
        key = (self.seed, trainer.global_step, step, place)
        seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)
        # torch's own for all devices keeps the stack of its caller, which takes a millisecond.
        seeded = torch.default_generator if pl_module.device.type == "cpu" else torch
        seeded.manual_seed(seed)
        loader = trainer.train_dataloader
        assert loader is not None
        for module in pl_module.modules():
            if isinstance(module, Transformer):
                first = place * loader.sampler.largest
                module.draws.set(self.seed, trainer.global_step, first)


class Epochs(_FitLoop):
    """Lightning's loop over epochs, which goes on after an epoch that was finished with the next
    one. With trainer.max_steps, Lightning's own takes it for one that was stopped within."""

    @_FitLoop.restarting.setter
    def restarting(self, restarting: bool) -> None:
        epochs: Any = self.epoch_progress.current
        within = (epochs.ready, epochs.started) != (epochs.processed, epochs.processed)
        _Loop.restarting.fset(self, restarting and within)  # pyright: ignore

    @classmethod
    def of(cls, trainer: Trainer) -> "Epochs":
        """Return the loop that stands for a trainer's own."""
        loop = cls(trainer, trainer.fit_loop.min_epochs, trainer.fit_loop.max_epochs)
        loop.epoch_loop = trainer.fit_loop.epoch_loop
        return loop


class EpochPlace(Callback):
    """Resumes a run that was stopped within an epoch with the batches it has not seen.

    The number of devices may be another one, as long as the batches of all of them together are
    the same.
    """

    def __init__(self) -> None:
        self.plan: list[int] | None = None  # of an epoch's batches
        self.seed: int | None = None  # of their order
        self.trained: dict[str, torch.Tensor] = {}  # the last metrics of training

    def state_dict(self) -> dict[str, Any]:
        return {"plan": self.plan, "seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Earlier states have the number of batches alone.
        self.plan = state_dict.get("plan") or [state_dict["batches"]]
        self.seed = state_dict.get("seed")

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep what a validation may be judged by, where one is still to be ended; and count the
        epoch that trainer.max_steps ends within as one that is not over."""
        metrics = trainer.callback_metrics.items()
        checkpoint["trained"] = {name: x for name, x in metrics if name.startswith("train/")}
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            return
        progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
        within = progress["current"]["processed"] == progress["current"]["started"]
        for counts in (progress["current"], progress["total"]):
            counts["processed"] -= within

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.trained = checkpoint.get("trained", {})  # earlier ones have none

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.callback_metrics.update(self.trained)
        loader = trainer.train_dataloader
        assert loader is not None
        progress, sampler = trainer.fit_loop.epoch_loop.batch_progress, loader.sampler
        # A finished epoch may have had another number of batches than this run's epochs.
        sampler.skip = 0 if progress.is_last_batch else progress.current.ready
        before, now = self.plan or sampler.plan, sampler.plan
        if before != now[: len(before)]:
            found = f"now an epoch has {now[0]}" if before[0] != now[0] else "now they are others"
            if sampler.skip:
                raise ValueError(
                    f"The run was stopped after {sampler.skip} of the {before[0]} batches of an "
                    f"epoch; {found}. Go on with the same data and as many items in the batches of "
                    "all devices together, or from a checkpoint at the end of an epoch."
                )
            if trainer.is_global_zero:
                print(f"note     an epoch had {before[0]} batches; {found}")
        if sampler.skip and self.seed not in (None, sampler.seed):
            raise ValueError(
                f"The run was stopped within an epoch in the order of seed={self.seed}; that of "
                f"seed={sampler.seed} is another. Go on with seed={self.seed}, or from a "
                "checkpoint at the end of an epoch."
            )
        self.plan, self.seed = now, sampler.seed
