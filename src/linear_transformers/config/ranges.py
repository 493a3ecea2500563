"""The ranges of numbers, declared once, in the signature that takes them; and choices of words.

A parameter's annotation says which numbers it takes: `num_heads: Size`. Configurations are checked
against it before anything is made, and `ranged` checks whoever calls the class from Python.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import cache, partial, wraps
from inspect import signature
from numbers import Integral, Real
from operator import ge, gt, le, lt
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, Predicate

NUMBER = re.compile(r"[-+.\de]+|nan|[-+]?inf")  # as text
F = TypeVar("F", bound=Callable[..., Any])
# What a number has to be, in words, and how it is told of one: NaN is in no range.
Range = dict[str, Callable[[float], bool]]

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
Levels = Annotated[int, Ge(2), Le(256)]  # of a sub-pixel
Positive = Annotated[float, Gt(0), Le(1e12)]
NotNegative = Annotated[float, Ge(0), Le(1e12)]
Power = Annotated[float, Ge(0), Le(50)]  # of a length: it remains a finite number
Fraction = Annotated[float, Ge(0), Lt(1)]
Share = Annotated[float, Gt(0), Le(1)]
Part = Annotated[float, Gt(0), Lt(1)]  # neither nothing nor all
ShareOrZero = Annotated[float, Ge(0), Le(1)]
Seconds = Annotated[float, Gt(0), Le(1e6)]
Nats = Annotated[float, Ge(-1e6), Le(1e6)]

_Words = Annotated[str, Predicate(lambda text: not NUMBER.fullmatch(text))]
_Epochs = Annotated[int, Ge(-1)]  # -1 is without end
_HOLDS = {"ge": le, "gt": lt, "le": ge, "lt": gt}  # of the limit and the number
_WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


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
        ranges = _ranges_of(function)
        try:
            given = parameters.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # whose own TypeError names it
        for name, value in given.items():
            if isinstance(value, Real) and name in ranges:  # NumPy's numbers are, too
                _check(name, value, ranges[name])
        return function(*args, **kwargs)

    return checked  # pyright: ignore[reportReturnType]


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise a ValueError unless a value is one of those to choose from."""
    choices = [*choices]
    if value not in choices:
        raise ValueError(f"{name}={value} is unknown. Choose one of {choices}.")


def _check(name: str, value: Any, ranges: list[Range]) -> None:
    """Refuse a number that is in none of some ranges."""
    broken = [[words for words, holds in each.items() if not holds(value)] for each in ranges]
    if all(broken):
        words = dict.fromkeys(map(" and ".join, broken))
        raise ValueError(f"{name}={value} was asked for; it must be {'; or '.join(words)}.")


@cache
def _ranges_of(function: Callable[..., Any]) -> dict[str, list[Range]]:
    hints = get_type_hints(function, include_extras=True)
    found = {name: list(_ranges(hint)) for name, hint in hints.items()}
    return {name: ranges for name, ranges in found.items() if ranges}


def _ranges(annotation: Any) -> Iterator[Range]:
    if get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _ranges(part)
    elif get_origin(annotation) is Annotated:
        kind, limits = get_args(annotation)[0], limits_of(annotation)
        whole: Range = {"a whole number": lambda x: isinstance(x, Integral)} if kind is int else {}
        if limits:
            yield whole | {in_words(end, x): partial(_HOLDS[end], x) for end, x in limits}


def limits_of(annotation: Any) -> list[tuple[str, float]]:
    """Return the ends of an annotated number's range, each as `in_words` takes it."""
    bounds = (asdict(x) for x in annotation.__metadata__ if isinstance(x, Ge | Gt | Le | Lt))
    return [limit for bound in bounds for limit in bound.items()]


def in_words(end: str, limit: float) -> str:
    """Return what a number has to be at an end of a range: `ge`, `gt`, `le` or `lt`."""
    return f"{_WORDS[end]} {int(limit) if float(limit).is_integer() else limit}"
