"""Handwritten digits of 8 x 8 pixels: embedded, so that everything runs offline.

The test part of the UCI data set *Optical Recognition of Handwritten Digits* (Alpaydin and Kaynak,
1998; CC BY 4.0), in its order.
"""

from pathlib import Path

import numpy as np

from linear_transformers.data.images import ImageShape, ImageSource
from linear_transformers.data.sequences import Splits

FILE = Path(__file__).with_name("digits.npz")
NUM_VAL = NUM_TEST = 180


class Digits(ImageSource):
    """1,797 digits of 8 x 8 pixels and 17 levels: 1,437 to train on, 180 and 180 held out.

    The split is fixed: a permutation with a seed of its own, because the file is ordered
    by writer.
    """

    @property
    def shape(self) -> ImageShape:
        return ImageShape(height=8, width=8, channels=1, num_levels=17)

    def load(self) -> Splits:
        with np.load(FILE) as file:
            images = file["images"][..., np.newaxis]
        images = images[np.random.default_rng(0).permutation(len(images))]
        held_out = NUM_VAL + NUM_TEST
        return Splits(
            train=images[:-held_out], val=images[-held_out:-NUM_TEST], test=images[-NUM_TEST:]
        )
