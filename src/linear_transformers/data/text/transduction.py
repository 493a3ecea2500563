"""Small tasks of rewriting, made as they are needed: strings copied, reversed or sorted; dates."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Annotated, Any
from zlib import crc32

import numpy as np
from annotated_types import Ge, Le

from linear_transformers.config.ranges import Count, check_choice, ranged
from linear_transformers.data.base import SPLITS, Split
from linear_transformers.data.text.pairs import Pair, PairSource

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FIRST_DAY, NUM_DAYS = date(1900, 1, 1), 73_049  # to the end of 2099
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Each says in one way only what is the day and what the month.
FORMATS: tuple[Callable[[date], str], ...] = (
    lambda d: f"{d.day} {MONTHS[d.month - 1]} {d.year}",
    lambda d: f"{d.day:02} {MONTHS[d.month - 1][:3].upper()} {d.year}",
    lambda d: f"{MONTHS[d.month - 1]} {_ordinal(d.day)}, {d.year}",
    lambda d: f"{MONTHS[d.month - 1][:3]} {d.day}, {d.year}",
    lambda d: f"{WEEKDAYS[d.weekday()]}, {d.day} {MONTHS[d.month - 1]} {d.year}",
    lambda d: f"the {_ordinal(d.day)} of {MONTHS[d.month - 1]} {d.year}",
    lambda d: f"{d.year}/{d.month}/{d.day}",
    lambda d: f"{d.year}, {MONTHS[d.month - 1]} {d.day}",
    lambda d: f"{d.day}.{d.month}.{d.year}",  # and never month.day
)
FUNCTIONS: dict[str, Callable[[str], str]] = {
    "copy": lambda text: text,
    "reverse": lambda text: text[::-1],
    "sort": lambda text: "".join(sorted(text)),
}
DATES = "dates"
SHARES = {"test": range(1), "val": range(1, 2), "train": range(2, 10)}  # of ten


class Transductions(PairSource):
    """Strings of letters to be copied, reversed or sorted; or dates in many formats, to ISO 8601.

    No string and no day is in two splits: a hash of it says in which it is. No pair is there twice.

    Args:
        batch_tokens: See `PairSource`.
        function: What is to be learnt: `copy`, `reverse`, `sort` or `dates`.
        max_length: The number of letters of the longest string.
        num_train: The number of training pairs.
        num_held_out: The number of validation pairs, and of test pairs.
        options: See `PairSource`. The pairs do not depend on the seed.

    Raises:
        ValueError: The function is unknown, or there are not so many pairs; or see `PairSource`.
    """

    natural = False

    @ranged
    def __init__(
        self,
        batch_tokens: Count = 4096,
        *,
        function: str = DATES,
        max_length: Annotated[int, Ge(3), Le(10_000)] = 32,
        num_train: Count = 20_000,
        num_held_out: Count = 500,
        **options: Any,
    ):
        super().__init__(batch_tokens, **options)
        check_choice("data.function", function, (*FUNCTIONS, DATES))
        self.function = function
        self.max_length = max_length
        self.sizes = {"train": num_train, "val": num_held_out, "test": num_held_out}
        count = len(FORMATS) * NUM_DAYS if function == DATES else len(LETTERS) ** max_length
        for split, name in (("train", "num_train"), ("test", "num_held_out")):
            most = count * len(SHARES[split]) // 20  # half of them: the last ones take long to find
            if self.sizes[split] > most:
                raise ValueError(
                    f"data.{name}={self.sizes[split]} are too many different pairs of "
                    f"data.function={function} data.max_length={max_length}. Ask for at most "
                    f"{most}."
                )

    def read(self, split: Split) -> list[Pair]:
        random = np.random.default_rng((SPLITS.index(split), self.max_length))
        make = self._date if self.function == DATES else self._string
        found: dict[Pair, None] = {}  # in their order; short strings would come again and again
        while len(found) < self.sizes[split]:
            key, pair = make(random)
            if crc32(key.encode()) % 10 in SHARES[split]:
                found[pair] = None
        return [*found]

    def _string(self, random: np.random.Generator) -> tuple[str, Pair]:
        length = random.integers(1, self.max_length, endpoint=True)
        text = "".join(LETTERS[i] for i in random.integers(len(LETTERS), size=length))
        return text, Pair(text, FUNCTIONS[self.function](text))

    def _date(self, random: np.random.Generator) -> tuple[str, Pair]:
        day = FIRST_DAY + timedelta(days=int(random.integers(NUM_DAYS)))
        written = FORMATS[random.integers(len(FORMATS))](day)
        return day.isoformat(), Pair(written, day.isoformat())


def _ordinal(day: int) -> str:
    suffix = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"
