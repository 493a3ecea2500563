"""Every stepper by its name, and the choice among them."""

import torch

from linear_transformers.config.ranges import check_choice
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.sampling.captured import CapturedStepper, FusedStepper
from linear_transformers.sampling.compiled import CompiledStepper
from linear_transformers.sampling.recurrent import RecomputedStepper, RecurrentStepper
from linear_transformers.sampling.stepper import Stepper

KINDS = (CompiledStepper, CapturedStepper, FusedStepper, RecurrentStepper, RecomputedStepper)
STEPPERS: dict[str, type[Stepper]] = {kind.name: kind for kind in KINDS}
LONG = 512  # values of a sequence: a captured graph takes seconds to make, see results/notes.md
PRECISIONS = tuple(dict.fromkeys(name for kind in KINDS for name in kind.precisions))


def stepper_of(
    model: AutoregressiveTransformer, *, name: str = "auto", precision: str | None = None
) -> Stepper:
    """Choose a stepper, and convert the model's weights to a precision.

    Args:
        model: The model, in `eval()` mode.
        name: `compiled`, `captured`, `fused`, `recurrent` or `recomputed`; `auto` is
            `compiled` on CPUs and, for long sequences, `captured` on GPUs, where it can run, else
            `recurrent`.
        precision: The precision of the weights, which are converted in place; None leaves them
            as they are. Sums of linear attention and the head are in float32 at least.

    Raises:
        ValueError: The name or the precision is unknown, or the stepper cannot run here.
    """
    check_choice("stepper", name, ("auto", *STEPPERS))
    if precision is not None:
        check_choice("precision", precision, PRECISIONS)
    if name != "auto":
        return STEPPERS[name](model, precision)
    reasons = []
    for kind in preferred(model.device, model.stack.positions.max_length):
        reason = kind.unavailable(model, precision)
        if reason is None:
            return kind(model, precision)
        reasons.append(f"{kind.name}, {reason}")
    raise ValueError(
        f"No stepper can run with precision={precision}: {'; '.join(reasons)}. "
        "Use precision=float32."
    )


def preferred(device: torch.device, max_length: int | None) -> tuple[type[Stepper], ...]:
    """Return the kinds of stepper that `auto` tries on a device, in their order.

    Args:
        device: The model's device.
        max_length: The greatest number of values of its sequences; None is any.
    """
    if device.type == "cpu":
        return CompiledStepper, RecurrentStepper
    if device.type == "cuda" and (max_length is None or max_length >= LONG):
        return CapturedStepper, RecurrentStepper
    return (RecurrentStepper,)
