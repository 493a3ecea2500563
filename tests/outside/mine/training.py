"""An optimizer, a schedule and a callback of one's own."""

import torch
from lightning import Callback, LightningModule, Trainer
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from linear_transformers.training.schedules import Schedule


class SignDescent(Optimizer):
    """Steps of one size: lr times the sign of the gradient."""

    def __init__(self, params, *, lr: float = 1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"])
        return loss


def halving(optimizer: Optimizer, total_steps: int | float, *, every: int = 10) -> Schedule:
    """Halve the rate every so many steps."""
    factor = LambdaLR(optimizer, lambda step: 0.5 ** (step // every))
    return {"scheduler": factor, "interval": "step"}


class SaySteps(Callback):
    """Print the number of steps when training ends."""

    def __init__(self, *, word: str = "steps"):
        self.word = word

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        print(f"{self.word}: {trainer.global_step}")
