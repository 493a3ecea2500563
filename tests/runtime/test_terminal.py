"""What a user sees: the bar, the plain lines, the pictures, the README's example."""

import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from linear_transformers.data import ImageShape
from linear_transformers.runtime.pictures import HIDDEN, save_grid, to_rgb, with_hidden
from linear_transformers.runtime.progress import Progress
from tests.conftest import PROJECT
from tests.programs import QUICK, run


def trainer(step: int) -> SimpleNamespace:
    figures = {"train/bits_per_dim": torch.tensor(2.31), "val/bits_per_dim": torch.tensor(2.2)}
    return SimpleNamespace(
        is_global_zero=True, estimated_stepping_batches=40, current_epoch=2, global_step=step,
        log_every_n_steps=10, sanity_checking=False,
        callback_metrics=figures,
    )  # fmt: skip


def test_the_bar_shows_epoch_steps_bits_and_time_left():
    progress = Progress()
    progress.console = Console(file=io.StringIO(), force_terminal=True, width=120)
    progress.on_train_start(trainer(0), None)
    for step in (10, 20):
        progress.on_train_batch_end(trainer(step), None, None, None, step)
    assert progress.bar is not None
    progress.bar.refresh()
    progress.on_train_end(trainer(20), None)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", progress.console.file.getvalue())
    assert "epoch 2" in shown
    assert "step 20/40" in shown
    assert "train 2.310  val 2.200  bits/dim" in shown
    assert "left" in shown


def test_without_a_terminal_each_validation_is_a_plain_line(tmp_path):
    printed = run("train", *QUICK, f"paths.runs={tmp_path}", "trainer.max_epochs=2")
    lines = [line for line in printed.splitlines() if line.startswith("epoch")]
    pattern = r"epoch \d  step \d/2  train \d\.\d{3}  val \d\.\d{3}  bits/dim  0:00:\d\d"
    assert [bool(re.fullmatch(pattern, line)) for line in lines] == [True, True]
    assert "\x1b" not in printed


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
    originals = np.stack([np.full((4, 4, 3), colour, np.uint8) for colour in colours])
    mask = np.zeros((4, 4), bool)
    mask[:2] = True
    tiles = {"given": with_hidden(originals, mask), "original": originals}
    save_grid(tiles, tmp_path / "grid.png")
    grid = np.asarray(Image.open(tmp_path / "grid.png"))
    side, gap, margin = 84, 6, 104
    for column, colour in enumerate(colours):
        x = margin + column * (side + gap) + side // 2
        assert tuple(grid[gap + side // 4, x]) == colour
        assert tuple(grid[gap + 3 * side // 4, x]) == HIDDEN
        assert tuple(grid[2 * gap + side + 3 * side // 4, x]) == colour


def test_the_readmes_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", (PROJECT / "README.md").read_text(), re.S)
    namespace: dict = {}
    exec(example, namespace)
    assert namespace["output"].shape == (2, 8, 32)
