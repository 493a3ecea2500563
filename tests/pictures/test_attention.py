"""The picture of attention: every weight where it belongs."""

import numpy as np
from PIL import Image

from linear_transformers.pictures.attention import CELL, GAP, LETTER, draw_weights

WRITTEN, SOURCE = ["Ein", "Hund", "schläft"], ["a", "dog"]


def test_every_weight_is_where_it_belongs(tmp_path):
    generator = np.random.default_rng(0)
    weights = generator.random((2, 3, len(WRITTEN), len(SOURCE)))
    draw_weights(weights, WRITTEN, SOURCE, tmp_path / "a.png")
    pixels = np.asarray(Image.open(tmp_path / "a.png"))
    left, top = LETTER * len("schläft") + GAP, LETTER * len("dog") + GAP
    width, height = len(SOURCE) * CELL, len(WRITTEN) * CELL
    for (layer, head, row, column), weight in np.ndenumerate(weights):
        x = left + head * (width + GAP) + column * CELL + CELL // 2
        y = top + layer * (height + GAP) + row * CELL + CELL // 2
        assert np.abs(pixels[y, x] - (255 - 255 * weight)).max() <= 0.5


def test_the_tokens_are_beside_their_rows_and_over_their_columns(tmp_path):
    """No ink where there is no name, and ink where there is one."""
    paths = [tmp_path / "empty.png", tmp_path / "named.png"]
    for path, written, source in zip(paths, (["   "], ["Ein"]), (["   "], ["dog"]), strict=True):
        draw_weights(np.zeros((1, 1, 1, 1)), written, source, path)
    empty, named = (np.asarray(Image.open(path)) for path in paths)
    margin = LETTER * 3 + GAP
    changed = (empty != named).any(-1)
    assert changed[margin : margin + CELL, : margin - 1].any()
    assert changed[: margin - 1, margin : margin + CELL].any()
    assert not changed[margin:, margin:].any()
    assert not changed[: margin - CELL, : margin - CELL].any()
