"""Image files: single PNGs, labelled grids, and animations of a grid that fills up."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from linear_transformers.data import Images, ImageShape
from linear_transformers.data.masks import Mask
from linear_transformers.files import replacing
from linear_transformers.pictures.fonts import font_of

TILE = 84  # the side of a grid's tiles, in pixels, about
GAP = 6
LABEL_WIDTH = 104  # at least
PAPER, INK, HIDDEN = (255, 255, 255), (60, 60, 60), (205, 214, 224)
COLUMNS, ROWS = 16, 16  # of a grid; further images are in their own files only
FRAMES, MILLISECONDS_A_FRAME, MILLISECONDS_AT_END = 48, 70, 2500

# Labels and rows of tiles, which need not be equally long.
Tiles = list[tuple[str, np.ndarray]]


def to_rgb(images: Images, shape: ImageShape) -> np.ndarray:
    """Return images as bytes 0 ... 255, [n, h, w, 3]."""
    scaled = np.round(images.astype(np.float64) * 255 / (shape.num_levels - 1)).astype(np.uint8)
    return np.broadcast_to(scaled, (*images.shape[:3], 3)) if shape.channels == 1 else scaled


def with_hidden(pixels: np.ndarray, mask: Mask) -> np.ndarray:
    """Return images with the pixels that are not given blanked out."""
    given = pixels.copy()
    given[:, ~mask] = HIDDEN
    return given


def save_image(pixels: np.ndarray, path: Path) -> None:
    """Write a PNG at its own size, whole or not at all."""
    with replacing(path) as partial:
        Image.fromarray(pixels).save(partial, format="PNG")


def tiles_of(completed: np.ndarray, originals: np.ndarray | None, mask: Mask, n: int) -> Tiles:
    """Return the rows of a grid: generated images alone, or given / completed / original.

    Args:
        completed: The pixels [k n, h, w, 3], the completions of an image next to each other.
        originals: The pixels [k, h, w, 3]; None if nothing was given.
        mask: The mask of the given pixels.
        n: The number of completions of each. Those of a single image share rows.
    """
    if originals is None:
        return _wrapped("generated", completed)
    if len(originals) == 1:
        rows = _wrapped("completed", completed)
        return [("given", with_hidden(originals, mask)), *rows, ("original", originals)]
    each = completed.reshape(-1, n, *completed.shape[1:])
    labels = ["completed"] if n == 1 else [f"completed {j + 1}" for j in range(n)]
    rows = []
    groups = max(1, ROWS // (n + 2))  # of rows that belong together
    starts = range(0, len(originals), COLUMNS)[:groups]
    for part in (slice(i, i + COLUMNS) for i in starts):
        rows.append(("given", with_hidden(originals[part], mask)))
        rows += [(label, each[part, j]) for j, label in enumerate(labels)]
        rows.append(("original", originals[part]))
    return rows


def _wrapped(label: str, images: np.ndarray) -> Tiles:
    """Return images wrapped into rows, the first one labelled."""
    starts = range(0, len(images), COLUMNS)[:ROWS]
    return [(label if i == 0 else "", images[i : i + COLUMNS]) for i in starts]


def save_grid(tiles: Tiles, path: Path) -> None:
    """Write a grid of labelled rows, images enlarged without smoothing."""
    save_image(np.asarray(_grid(tiles)), path)


def save_animation(tiles: Tiles, mask: Mask, path: Path) -> None:
    """Write a grid as a GIF in which hidden pixels appear in the order they were drawn."""
    hidden = np.flatnonzero(~mask)
    frames = []
    for shown in np.linspace(0, len(hidden), min(FRAMES, len(hidden)) + 1).round().astype(int):
        visible = mask.copy()
        visible.ravel()[hidden[:shown]] = True
        frames.append(_grid(_drawn_so_far(tiles, visible)))
    durations = [MILLISECONDS_A_FRAME] * (len(frames) - 1) + [MILLISECONDS_AT_END]
    with replacing(path) as partial:
        frames[0].save(
            partial, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0
        )


def _drawn_so_far(tiles: Tiles, visible: Mask) -> Tiles:
    whole = ("given", "original")
    return [(name, row if name in whole else with_hidden(row, visible)) for name, row in tiles]


def _grid(tiles: Tiles) -> Image.Image:
    height, width = tiles[0][1].shape[1:3]
    columns = max(len(row) for _, row in tiles)
    zoom = max(1, round(TILE / max(height, width)))
    tile = (width * zoom, height * zoom)
    font = font_of(15)
    left = max(LABEL_WIDTH, *(round(font.getlength(label)) + 2 * GAP for label, _ in tiles))
    size = (left + columns * (tile[0] + GAP) + GAP, len(tiles) * (tile[1] + GAP) + GAP)
    grid = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(grid)
    for r, (label, row) in enumerate(tiles):
        y = GAP + r * (tile[1] + GAP)
        draw.text((GAP, y + tile[1] // 2), label, fill=INK, anchor="lm", font=font)
        for i, image in enumerate(row):
            enlarged = Image.fromarray(image).resize(tile, Image.Resampling.NEAREST)
            grid.paste(enlarged, (left + i * (tile[0] + GAP), y))
    return grid
