"""Learning rates over a run. Each schedule takes the optimizer and the run's number of steps."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    MultiStepLR,
    ReduceLROnPlateau,
    SequentialLR,
)

# What Lightning takes under "lr_scheduler": a scheduler, and when to step it.
Schedule = dict[str, Any]
ScheduleFactory = Callable[[Optimizer, int], Schedule | None]


def constant(optimizer: Optimizer, total_steps: int) -> None:
    """The optimizer's own rate throughout, as the paper's image models have it."""
    return


def warmup_cosine(
    optimizer: Optimizer, total_steps: int, *, warmup: float = 0.05, final: float = 0.01
) -> Schedule:
    """Rise linearly over a fraction `warmup` of the run, then fall to a fraction `final`.

    Raises:
        ValueError: The run has no end, so there is nothing to fall towards, or a fraction
            lies outside [0, 1).
    """
    if not (0 <= warmup < 1 and 0 <= final < 1):
        raise ValueError(f"warmup={warmup}, final={final}: both are fractions in [0, 1).")
    if total_steps < 1:
        raise ValueError(
            f"scheduler=warmup_cosine needs a run of known length, found {total_steps} steps. "
            "Set trainer.max_epochs or trainer.max_steps, or use scheduler=constant."
        )
    rising = max(1, round(warmup * total_steps))
    start = optimizer.param_groups[0]["lr"]
    scheduler = SequentialLR(
        optimizer,
        [
            LinearLR(optimizer, start_factor=1 / rising, total_iters=rising - 1),
            CosineAnnealingLR(optimizer, T_max=max(1, total_steps - rising), eta_min=final * start),
        ],
        milestones=[rising],
    )
    return {"scheduler": scheduler, "interval": "step"}


def step_down(
    optimizer: Optimizer, total_steps: int, *, at: int = 3000, factor: float = 0.1
) -> Schedule:
    """Multiply the rate by `factor` after `at` steps: the paper's copy task."""
    return {"scheduler": MultiStepLR(optimizer, [at], gamma=factor), "interval": "step"}


def on_plateau(
    optimizer: Optimizer,
    total_steps: int,
    *,
    monitor: str,
    factor: float = 0.5,
    patience: int = 3,
) -> Schedule:
    """Multiply the rate by `factor` when `monitor` has not fallen for `patience` validations."""
    scheduler = ReduceLROnPlateau(optimizer, factor=factor, patience=patience)
    return {"scheduler": scheduler, "monitor": monitor}
