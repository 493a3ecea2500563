"""Grids and animations: every image where it belongs."""

import errno
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linear_transformers.data import ImageShape
from linear_transformers.pictures.grids import (
    HIDDEN,
    save_animation,
    save_grid,
    tiles_of,
    to_rgb,
    with_hidden,
)

SIDE, GAP, MARGIN = 84, 6, 104


@pytest.mark.parametrize("channels", [1, 3])
def test_levels_become_bytes(channels):
    shape = ImageShape(2, 2, channels, 17)
    images = np.full((1, 2, 2, channels), 16, np.uint8)
    images[0, 0, 0] = 0
    images[0, 0, 1] = 8
    pixels = to_rgb(images, shape)
    assert pixels.shape == (1, 2, 2, 3)
    assert pixels[0, :, :, 0].tolist() == [[0, 128], [255, 255]]


def test_the_grid_shows_every_image_of_every_row_where_it_belongs(tmp_path):
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    originals = plain(*colours)
    mask = upper_half()
    save_grid(
        [("given", with_hidden(originals, mask)), ("original", originals)], tmp_path / "g.png"
    )
    grid = np.asarray(Image.open(tmp_path / "g.png"))
    for column, colour in enumerate(colours):
        x = MARGIN + column * (SIDE + GAP) + SIDE // 2
        assert tuple(grid[GAP + SIDE // 4, x]) == colour
        assert tuple(grid[GAP + 3 * SIDE // 4, x]) == HIDDEN
        assert tuple(grid[2 * GAP + SIDE + 3 * SIDE // 4, x]) == colour


def test_completions_stand_below_what_they_complete():
    originals, completed = levels(0, 1), levels(10, 20, 11, 21)
    rows = tiles_of(completed, originals, upper_half(), n=2)
    assert [label for label, _ in rows] == ["given", "completed 1", "completed 2", "original"]
    assert [seen(row) for _, row in rows] == [[0, 1], [10, 11], [20, 21], [0, 1]]


def test_completions_of_one_image_share_rows():
    rows = tiles_of(levels(*range(20)), levels(99), upper_half(), n=20)
    assert [(label, seen(row)) for label, row in rows] == [
        ("given", [99]),
        ("completed", list(range(16))),
        ("", list(range(16, 20))),
        ("original", [99]),
    ]


def test_more_images_than_a_row_holds_go_below_it():
    originals, completed = levels(*range(18)), levels(*range(100, 118))
    rows = tiles_of(completed, originals, upper_half(), n=1)
    assert [label for label, _ in rows] == ["given", "completed", "original"] * 2
    assert [len(row) for _, row in rows] == [16] * 3 + [2] * 3
    assert seen(rows[4][1]) == [116, 117]
    rows = tiles_of(levels(*range(150)), levels(*range(50)), upper_half(), n=3)
    groups = [label for label, _ in rows]  # of which the grid holds three whole ones
    assert groups == ["given", "completed 1", "completed 2", "completed 3", "original"] * 3
    generated = tiles_of(levels(*range(100)), None, upper_half(), n=100)
    assert [i for _, row in generated for i in seen(row)] == list(range(100))


def test_the_animation_fills_in_raster_order(tmp_path):
    mask = upper_half()
    rows = tiles_of(plain((255, 0, 0)), plain((0, 0, 255)), mask, n=1)
    save_animation(rows, mask, tmp_path / "g.gif")
    hidden = []
    with Image.open(tmp_path / "g.gif") as animation:
        assert animation.n_frames == 1 + (~mask).sum()
        for i in range(animation.n_frames):
            animation.seek(i)
            frame = np.asarray(animation.convert("RGB"))
            tile = frame[2 * GAP + SIDE : 2 * (GAP + SIDE), MARGIN : MARGIN + SIDE]
            pixels = tile[SIDE // 8 :: SIDE // 4, SIDE // 8 :: SIDE // 4]
            hidden.append((pixels == HIDDEN).all(-1))
    assert [shown.sum() for shown in hidden] == list(range(8, -1, -1))
    for before, after in pairwise(hidden):
        assert np.flatnonzero(before)[0] not in np.flatnonzero(after)


@pytest.mark.parametrize("name", ["g.png", "g.gif"])
def test_a_picture_on_a_full_disk_is_named_and_the_one_before_stays(tmp_path, monkeypatch, name):
    def full(self, file, *args, **kwargs):
        Path(file).write_bytes(b"torn")
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / name
    path.write_bytes(b"before")
    monkeypatch.setattr(Image.Image, "save", full)
    rows = [("given", plain((255, 0, 0)))]
    with pytest.raises(OSError, match="No space left") as raised:
        save_grid(rows, path) if name == "g.png" else save_animation(rows, upper_half(), path)
    assert raised.value.filename == str(path)
    assert path.read_bytes() == b"before"
    assert [*tmp_path.iterdir()] == [path]


def plain(*colours: tuple[int, int, int]) -> np.ndarray:
    return np.stack([np.full((4, 4, 3), colour, np.uint8) for colour in colours])


def levels(*greys: int) -> np.ndarray:
    return plain(*((grey, grey, grey) for grey in greys))


def seen(row: np.ndarray) -> list[int]:
    """The grey of each image's first pixel, which is given everywhere."""
    return row[:, 0, 0, 0].tolist()


def upper_half() -> np.ndarray:
    mask = np.zeros((4, 4), bool)
    mask[:2] = True
    return mask
