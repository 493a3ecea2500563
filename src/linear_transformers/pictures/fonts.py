"""The font of labels in pictures."""

from functools import cache

from PIL import ImageFont

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont
# Those of Linux, macOS and Windows that have the letters of most languages.
NAMES = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial.ttf", "arial.ttf", "Helvetica.ttc")


@cache
def font_of(size: int) -> Font:
    """Return the first known font of the system; else Pillow's own, which has ASCII only.

    Args:
        size: The height in pixels.
    """
    for name in NAMES:
        try:
            return ImageFont.truetype(name, size)
        except OSError:  # it is not installed
            continue
    return ImageFont.load_default(size=size)
