"""Learning rate schedules, made from the optimizer and a run's number of steps, or infinity."""

import math
from collections.abc import Callable
from typing import Annotated, Any

from annotated_types import MinLen
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, ReduceLROnPlateau

from linear_transformers.config.ranges import Count, CountOrZero, Fraction, Part, Share, ranged

# What Lightning takes under "lr_scheduler": a scheduler, and when to step it.
Schedule = dict[str, Any]
Name = Annotated[str, MinLen(1)]
ScheduleFactory = Callable[[Optimizer, int | float], Schedule | None]


class Curve(LambdaLR):
    """A rate that is a function of the step alone.

    A run that is continued to a new length follows the new length's curve from its first step on.
    torch's own cosine would rise again after its old end.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        curves = zip(self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=True)
        for group, rate, factor in curves:
            group["lr"] = rate * factor(self.last_epoch)


def constant(optimizer: Optimizer, total_steps: int | float) -> None:
    """Keep the optimizer's rate throughout, as the paper's image models do."""


@ranged
def warmup_cosine(
    optimizer: Optimizer,
    total_steps: int | float,
    *,
    warmup: Fraction = 0.05,
    final: Fraction = 0.01,
) -> Schedule:
    """Rise linearly over a fraction `warmup` of the run, then fall to `final` times the rate.

    Raises:
        ValueError: The run's length is unknown, or a fraction lies outside [0, 1).
    """
    if not 1 <= total_steps < math.inf:
        raise ValueError(
            f"scheduler=warmup_cosine needs a run of known length, found {total_steps} steps. "
            "Set trainer.max_epochs or trainer.max_steps, or use scheduler=constant."
        )
    rising = max(1, round(warmup * total_steps))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        progress = min(1.0, (step - rising) / max(1, total_steps - rising))
        return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2

    return {"scheduler": Curve(optimizer, factor), "interval": "step"}


@ranged
def inverse_sqrt(
    optimizer: Optimizer, total_steps: int | float, *, warmup: Count = 4000
) -> Schedule:
    """Rise linearly over `warmup` steps, then fall as the inverse square root of the step.

    The rate is that of step `warmup`, the highest. Vaswani et al. (2017), eq. 3, have
    model_dim^-0.5 warmup^-0.5 there.
    """

    def factor(step: int) -> float:
        return min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5)

    return {"scheduler": Curve(optimizer, factor), "interval": "step"}


@ranged
def step_down(
    optimizer: Optimizer, total_steps: int | float, *, at: Count = 3000, factor: Share = 0.1
) -> Schedule:
    """Multiply the rate by `factor` after `at` steps: the paper's copy task."""
    return {"scheduler": MultiStepLR(optimizer, [at], gamma=factor), "interval": "step"}


@ranged
def on_plateau(
    optimizer: Optimizer,
    total_steps: int | float,
    *,
    monitor: Name | None = None,
    factor: Part = 0.5,
    patience: CountOrZero = 3,
) -> Schedule:
    """Multiply the rate by `factor` when a metric has not improved for `patience` validations.

    `monitor` names the metric; None is the task's own figure. A figure of the task that is best
    at its most must rise, every other metric must fall.
    """
    scheduler = ReduceLROnPlateau(optimizer, factor=factor, patience=patience)
    return {"scheduler": scheduler, "monitor": monitor}
