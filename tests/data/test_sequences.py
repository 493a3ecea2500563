"""Sequences, of a data set that somebody wrote."""

import numpy as np
import pytest

from linear_transformers.data.images import ImageShape, ImageSource
from linear_transformers.data.sequences import Splits


def source(val: np.ndarray) -> ImageSource:
    class Mine(ImageSource):
        shape = ImageShape(6, 6, 1, 16)

        def load(self) -> Splits:
            return Splits(fine(), val, fine())

    return Mine(batch_size=4)


def fine(*, size: int = 6, dtype: str = "uint8") -> np.ndarray:
    return np.full((8, size, 6, 1), 15, dtype=dtype)


@pytest.mark.parametrize(
    ("val", "found"),
    [
        (fine(dtype="float32"), "val are float32, of 36 values from 15 to 15"),
        (fine() * 10, "val are uint8, of 36 values from 150 to 150"),
        (fine(size=12), "val are uint8, of 72 values from 15 to 15"),
    ],
)
def test_items_of_another_shape_are_refused_before_training(val, found, raises_one_line):
    source(fine()).check(1)
    with raises_one_line("Mine.load: the first of", found, "36 whole numbers from 0 to 15."):
        source(val).check(1)
