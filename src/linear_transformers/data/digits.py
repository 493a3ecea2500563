"""scikit-learn's handwritten digits: embedded, so that everything runs offline."""

import numpy as np

from linear_transformers.data.images import ImageShape, ImageSource
from linear_transformers.data.sequences import Splits

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
        from sklearn.datasets import load_digits  # slow to import

        pixels, _ = load_digits(return_X_y=True)
        images = np.asarray(pixels, dtype=np.uint8).reshape(-1, 8, 8, 1)
        images = images[np.random.default_rng(0).permutation(len(images))]
        held_out = NUM_VAL + NUM_TEST
        return Splits(
            train=images[:-held_out], val=images[-held_out:-NUM_TEST], test=images[-NUM_TEST:]
        )
