"""Pictures of attention: the share of each token of a source in what is read from it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from linear_transformers.pictures.fonts import Font, font_of
from linear_transformers.pictures.grids import INK, PAPER, save_image

# Pixels:
CELL, GAP = 12, 14  # a cell's side; between panels
FONT_SIZE, LETTER = 11, 8  # letters, and their greatest width
LINE, NUMBER = 18, 60  # the line under panels; the words beside them


def draw_weights(
    weights: np.ndarray, written: Sequence[str], source: Sequence[str], path: Path
) -> None:
    """Write a PNG with a panel for each head, and a row of panels for each layer.

    A cell is the darker the more its token of the source, a column, has of what is read before
    its token of the target, a row, is written.

    Args:
        weights: The weights [layers, heads, t, s], 0 ... 1.
        written: The tokens of the target, t.
        source: The tokens of the source, s.
        path: The path of the PNG.
    """
    layers, heads, rows, columns = weights.shape
    left, top = (LETTER * max(map(len, names)) + GAP for names in (written, source))
    width, height = columns * CELL, rows * CELL
    size = (left + heads * (width + GAP) + NUMBER, top + layers * (height + GAP) + LINE)
    canvas = Image.new("RGB", size, PAPER)
    font = font_of(FONT_SIZE)
    for head in range(heads):
        x = left + head * (width + GAP)
        canvas.paste(_upright(source, top - GAP // 2, font), (x, 0))
        for layer in range(layers):
            y = top + layer * (height + GAP)
            grey = 255 - 255 * weights[layer, head].clip(0, 1)
            panel = Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
            canvas.paste(panel.resize((width, height), Image.Resampling.NEAREST), (x, y))
            ImageDraw.Draw(canvas).rectangle((x - 1, y - 1, x + width, y + height), outline=INK)
    draw = ImageDraw.Draw(canvas)
    for layer in range(layers):
        y = top + layer * (height + GAP)
        draw.text((size[0] - NUMBER, y + height // 2), f"layer {layer + 1}", INK, font, anchor="lm")
        for row, name in enumerate(written):
            middle = y + row * CELL + CELL // 2
            draw.text((left - GAP // 2, middle), name, INK, font, anchor="rm")
    for head in range(heads):
        x = left + head * (width + GAP) + width // 2
        draw.text((x, size[1] - LINE), f"head {head + 1}", INK, font, anchor="mt")
    save_image(np.asarray(canvas), path)


def _upright(names: Sequence[str], height: int, font: Font) -> Image.Image:
    """Return names written upwards, one over each column."""
    flat = Image.new("RGB", (height, len(names) * CELL), PAPER)
    draw = ImageDraw.Draw(flat)
    for column, name in enumerate(names):
        draw.text((0, column * CELL + CELL // 2), name, INK, font, anchor="lm")
    return flat.transpose(Image.Transpose.ROTATE_90)
