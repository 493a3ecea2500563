"""The ranges of numbers, declared once, in the signature that takes them.

A parameter's annotation says which numbers it takes: `num_heads: Size`. Configurations are checked
against it before anything is made, and `ranged` checks whoever calls the class from Python.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, wraps
from inspect import signature
from operator import ge, gt, le, lt
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, Predicate

NUMBER = re.compile(r"[-+.\de]+|nan|[-+]?inf")  # as text
F = TypeVar("F", bound=Callable[..., Any])

Count = Annotated[int, Ge(1), Le(10**9)]  # of batches, steps, items
CountOrZero = Annotated[int, Ge(0), Le(10**9)]
Size = Annotated[int, Ge(1), Le(2**20)]  # of a tensor, along one axis
Taps = Annotated[int, Ge(1), Le(256)]  # of a short convolution
Depth = Annotated[int, Ge(1), Le(10_000)]  # of layers
Period = Annotated[int, Ge(2), Le(10_000)]  # of layers of another kind
Directions = Annotated[int, Ge(1), Le(2**14)]  # of random features
Sentences = Annotated[int, Ge(1), Le(10**6)]  # to synthesise
Masks = Annotated[int, Ge(0), Le(1000)]
Seed = Annotated[int, Ge(0), Lt(2**32)]
Positive = Annotated[float, Gt(0), Le(1e12)]
NotNegative = Annotated[float, Ge(0), Le(1e12)]
Fraction = Annotated[float, Ge(0), Lt(1)]
Share = Annotated[float, Gt(0), Le(1)]
ShareOrZero = Annotated[float, Ge(0), Le(1)]
Seconds = Annotated[float, Gt(0), Le(1e6)]
Nats = Annotated[float, Ge(-1e6), Le(1e6)]

_Words = Annotated[str, Predicate(lambda text: not NUMBER.fullmatch(text))]
_Epochs = Annotated[int, Ge(-1)]  # -1 is without end
_BOUNDS = {Ge: (ge, "at least"), Gt: (gt, "above"), Le: (le, "at most"), Lt: (lt, "below")}


class Foreign:
    """Options of torch's optimizers and of Lightning's trainer and callbacks, by name: their own
    annotations say nothing of ranges."""

    lr: Annotated[float, Gt(0)]
    betas: tuple[Fraction, Fraction]
    eps: ShareOrZero | tuple[ShareOrZero | None, ShareOrZero | None]  # Adafactor has two
    weight_decay: NotNegative
    momentum: NotNegative
    differentiable: Literal[False]
    maximize: Literal[False]  # the loss
    decay: ShareOrZero
    update_every_n_steps: Count
    update_starting_at_step: CountOrZero | None
    update_starting_at_epoch: CountOrZero | None
    devices: Annotated[int, Ge(-1), Le(1024)] | list[int] | _Words
    max_epochs: _Epochs | None
    max_steps: _Epochs
    min_epochs: CountOrZero | None
    min_steps: CountOrZero | None
    num_nodes: Count
    accumulate_grad_batches: Count
    gradient_clip_val: Positive | None
    check_val_every_n_epoch: Count | None
    val_check_interval: Count | Share | _Words | None
    log_every_n_steps: CountOrZero | None
    num_sanity_val_steps: _Epochs | None
    limit_train_batches: CountOrZero | ShareOrZero | None
    limit_val_batches: CountOrZero | ShareOrZero | None
    limit_test_batches: CountOrZero | ShareOrZero | None
    overfit_batches: CountOrZero | ShareOrZero
    reload_dataloaders_every_n_epochs: CountOrZero
    precision: (
        Literal["auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true"]
        | Literal["transformer-engine", "transformer-engine-float16"]
        | Literal["64", "32", "16", "bf16", 64, 32, 16]
        | None
    )


FOREIGN_RANGES = get_type_hints(Foreign, include_extras=True)


def ranged(function: F) -> F:
    """Make a function or constructor refuse numbers that its annotations do not take.

    Raises:
        ValueError: When it is called: it names the argument, the number and the range.
    """
    parameters = signature(function)

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        limits = _limits_of(function)
        for name, value in parameters.bind(*args, **kwargs).arguments.items():
            if isinstance(value, int | float) and name in limits:
                check_range(name, value, limits[name])
        return function(*args, **kwargs)

    return checked  # pyright: ignore[reportReturnType]


def check_range(name: str, value: float, limits: list[list[Any]]) -> None:
    """Refuse a number outside of all given ranges.

    Args:
        name: The name of what is checked.
        value: The number.
        limits: The ranges, each a list of the bounds of `annotated_types`, and `int` where the
            number is whole.

    Raises:
        ValueError: It is outside.
    """
    if not any(all(_holds(bound, value) for bound in bounds) for bounds in limits):
        broken = ([bound for bound in bounds if not _holds(bound, value)] for bounds in limits)
        words = dict.fromkeys(" and ".join(map(_said, bounds)) for bounds in broken)
        raise ValueError(f"{name}={value} was asked for; it must be {'; or '.join(words)}.")


@cache
def _limits_of(function: Callable[..., Any]) -> dict[str, list[list[Any]]]:
    hints = get_type_hints(function, include_extras=True)
    found = {name: list(_ranges(hint)) for name, hint in hints.items()}
    return {name: ranges for name, ranges in found.items() if ranges}


def _ranges(annotation: Any) -> Iterator[list[Any]]:
    if get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _ranges(part)
    elif get_origin(annotation) is Annotated:
        kind, *about = get_args(annotation)
        if bounds := [bound for bound in about if type(bound) in _BOUNDS]:
            yield [int, *bounds] if kind is int else bounds


def shown(limit: float) -> str:
    """Return a limit as one would write it."""
    return str(int(limit)) if float(limit).is_integer() else str(limit)


def _holds(bound: Any, value: float) -> bool:
    if bound is int:
        return isinstance(value, int)
    compare, _ = _BOUNDS[type(bound)]
    return compare(value, _limit(bound))  # NaN holds in none


def _said(bound: Any) -> str:
    if bound is int:
        return "a whole number"
    _, words = _BOUNDS[type(bound)]
    return f"{words} {shown(_limit(bound))}"


def _limit(bound: Any) -> float:
    (name,) = bound.__slots__
    return getattr(bound, name)
