"""Every stepper by its name, and the choice among them."""

from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.sampling.captured import CapturedStepper, FusedStepper
from linear_transformers.sampling.compiled import CompiledStepper
from linear_transformers.sampling.recurrent import RecomputedStepper, RecurrentStepper
from linear_transformers.sampling.stepper import Stepper

KINDS = (CompiledStepper, CapturedStepper, FusedStepper, RecurrentStepper, RecomputedStepper)
STEPPERS: dict[str, type[Stepper]] = {kind.name: kind for kind in KINDS}
# By the device, the first that can run.
AUTO = {"cpu": (CompiledStepper, RecurrentStepper), "cuda": (CapturedStepper, RecurrentStepper)}
PRECISIONS = tuple(dict.fromkeys(name for kind in KINDS for name in kind.precisions))


def stepper_of(
    model: AutoregressiveTransformer, *, name: str = "auto", precision: str | None = None
) -> Stepper:
    """Choose a stepper, and convert the model's weights to a precision.

    Args:
        model: The model, in `eval()` mode.
        name: `compiled`, `captured`, `fused`, `recurrent` or `recomputed`; `auto` is
            `compiled` on CPUs and `captured` on GPUs where it can run, else `recurrent`.
        precision: The precision of the weights, which are converted in place; None leaves them
            as they are. Sums of linear attention and the head are in float32 at least.

    Raises:
        ValueError: The name or the precision is unknown, or the stepper cannot run here.
    """
    if name != "auto" and name not in STEPPERS:
        raise ValueError(f"stepper={name} is unknown. Choose one of {['auto', *STEPPERS]}.")
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision={precision} is unknown. Choose one of {list(PRECISIONS)}.")
    if name != "auto":
        return STEPPERS[name](model, precision)
    reasons = []
    for kind in AUTO.get(model.device.type, (RecurrentStepper,)):
        reason = kind.unavailable(model, precision)
        if reason is None:
            return kind(model, precision)
        reasons.append(f"{kind.name}, {reason}")
    raise ValueError(
        f"No stepper can run with precision={precision}: {'; '.join(reasons)}. "
        "Use precision=float32."
    )
