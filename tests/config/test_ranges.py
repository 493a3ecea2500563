"""Whoever calls from Python gets one line on a number that a signature does not take."""

import re
from typing import Any

import numpy as np
import pytest

from linear_transformers.config.ranges import CountOrZero, Share, ShareOrZero, Size, ranged


@ranged
def take(width: Size, *, share: Share | None = None, limit: CountOrZero | ShareOrZero = 0) -> Any:
    """Return the numbers that were taken."""
    return width, share, limit


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"width": 0}, "width=0 was asked for; it must be at least 1."),
        ({"width": 256 / 8}, "width=32.0 was asked for; it must be a whole number."),
        ({"width": np.int64(0)}, "width=0 was asked for; it must be at least 1."),
        ({"width": np.float32(8)}, "width=8.0 was asked for; it must be a whole number."),
        ({"width": 0.5}, "width=0.5 was asked for; it must be a whole number and at least 1."),
        ({"width": 8, "share": float("nan")}, "share=nan was asked for; it must be above 0 and"),
        ({"width": 8, "limit": 2.5}, "it must be a whole number; or at most 1."),
        ({"width": 8, "limit": -1}, "limit=-1 was asked for; it must be at least 0."),
    ],
)
def test_a_number_that_is_not_taken_is_refused(words, told, raises_one_line):
    with raises_one_line(told):
        take(**words)


def test_what_is_missing_is_said_in_pythons_words():
    with pytest.raises(TypeError, match=re.escape("take() missing 1 required positional argument")):
        take()
    with pytest.raises(TypeError, match=re.escape("take() got an unexpected keyword argument")):
        take(8, size=3)


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ({"width": np.int64(8)}, (8, None, 0)),
        ({"width": 8, "share": 1}, (8, 1, 0)),
        ({"width": 8, "share": None, "limit": 0.5}, (8, None, 0.5)),
        ({"width": 8, "limit": 10}, (8, None, 10)),
    ],
)
def test_a_number_that_is_taken_is_let_through(words, taken):
    assert take(**words) == taken
