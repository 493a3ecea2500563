"""Masks: which pixels of an image are given, and which are to be drawn."""

from pathlib import Path

import numpy as np
from jaxtyping import Bool

from linear_transformers.data.image_file import read_image
from linear_transformers.data.images import ImageShape

Mask = Bool[np.ndarray, "height width"]  # True where a pixel is given

SIDES = ("bottom", "left", "right")


def mask_of(
    hidden: str | Path, shape: ImageShape, *, rows: int | None = None, resize: bool = False
) -> Mask:
    """Return the mask that a word or a picture file describes.

    Args:
        hidden: What to hide: `bottom` is everything below the first `rows`, `left` and `right`
            are a half, anything else is a picture whose light pixels are hidden.
        shape: The shape of the images.
        rows: The number of rows that `bottom` leaves; None is half of them.
        resize: Whether a picture of another size is cropped and resized, as an image is.

    Raises:
        ValueError: There are fewer rows, `rows` is for another mask, or the picture is unusable.
    """
    if rows is not None and hidden != "bottom":
        raise ValueError(f"rows={rows} goes with mask=bottom; mask={hidden} was asked for.")
    given = np.ones((shape.height, shape.width), dtype=bool)
    if hidden == "bottom":
        rows = shape.height // 2 if rows is None else rows
        if not (isinstance(rows, int | np.integer) and 0 <= rows <= shape.height):
            raise ValueError(f"rows={rows} was asked for; the images have {shape.height} rows.")
        given[rows:] = False
    elif hidden == "left":
        given[:, : shape.width // 2] = False
    elif hidden == "right":
        given[:, shape.width // 2 :] = False
    else:
        if not Path(hidden).is_file():
            raise ValueError(
                f"mask={hidden} is neither one of {list(SIDES)} nor a picture file, "
                "whose light pixels are hidden."
            )
        grey = ImageShape(shape.height, shape.width, channels=1, num_levels=256)
        given = read_image(Path(hidden), grey, resize=resize, background=0)[0, :, :, 0] < 128
    return given
