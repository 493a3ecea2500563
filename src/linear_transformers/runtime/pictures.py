"""Images to PNG files: one each, and a grid that shows what was given and what was made."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from linear_transformers.data import Images, ImageShape

TILE = 84  # pixels a side that a grid's tiles reach at least
GAP = 6
LABEL_WIDTH = 92
PAPER, INK, HIDDEN = (255, 255, 255), (60, 60, 60), (205, 214, 224)


def to_rgb(images: Images, shape: ImageShape) -> np.ndarray:
    """Levels 0 ... num_levels - 1 as bytes 0 ... 255, [n, h, w, 3]."""
    scaled = np.round(images.astype(np.float64) * 255 / (shape.num_levels - 1)).astype(np.uint8)
    return np.broadcast_to(scaled, (*images.shape[:3], 3)) if shape.channels == 1 else scaled


def with_hidden_rows(pixels: np.ndarray, rows: int) -> np.ndarray:
    """The images as the model was given them: everything below the first `rows` is blank."""
    given = pixels.copy()
    given[:, rows:] = HIDDEN
    return given


def save_images(pixels: np.ndarray, folder: Path, *, first: int = 0) -> list[Path]:
    """One PNG an image, at its own size: 0000.png, 0001.png, ..."""
    paths = [folder / f"{first + i:04d}.png" for i in range(len(pixels))]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    return paths


def save_grid(rows: dict[str, np.ndarray], path: Path) -> None:
    """One labelled row of tiles for each entry, images enlarged without smoothing."""
    images = next(iter(rows.values()))
    count, height, width = images.shape[:3]
    zoom = max(1, round(TILE / max(height, width)))
    tile = (width * zoom, height * zoom)
    size = (
        LABEL_WIDTH + count * (tile[0] + GAP) + GAP,
        len(rows) * (tile[1] + GAP) + GAP,
    )
    grid = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(grid)
    for r, (label, images) in enumerate(rows.items()):
        y = GAP + r * (tile[1] + GAP)
        draw.text(
            (GAP, y + tile[1] // 2),
            label,
            fill=INK,
            anchor="lm",
            font=ImageFont.load_default(size=15),
        )
        for i, image in enumerate(images):
            enlarged = Image.fromarray(image).resize(tile, Image.Resampling.NEAREST)
            grid.paste(enlarged, (LABEL_WIDTH + i * (tile[0] + GAP), y))
    grid.save(path)
