"""What a user sees: the bar, the plain lines, the library's example."""

import io
import math
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from linear_transformers.callbacks.progress import Progress
from linear_transformers.tasks.base import Figure
from linear_transformers.training.module import Training
from tests.conftest import PROJECT
from tests.programs import QUICK, figures, run


class Run(Training):
    num_steps = math.nan


def trainer(step: int, total: float = 40) -> SimpleNamespace:
    module = object.__new__(Run)
    object.__setattr__(module, "num_steps", total)
    object.__setattr__(module, "task", SimpleNamespace(figure=Figure("bits_per_dim", "bits/dim")))
    figures = {"train/bits_per_dim": torch.tensor(2.31), "val/bits_per_dim": torch.tensor(2.2)}
    return SimpleNamespace(
        is_global_zero=True, current_epoch=2, max_epochs=4, global_step=step,
        log_every_n_steps=10, sanity_checking=False,
        callback_metrics=figures, lightning_module=module,
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


@pytest.mark.parametrize("max_epochs", [4, 9, -1])  # of the latter, trainer.max_steps ended it
def test_the_last_line_has_the_last_epoch(capsys, max_epochs):
    """Lightning has counted one more when training has ended, and none was validated."""
    over = trainer(40)
    over.current_epoch, over.max_epochs = 4, max_epochs
    progress = Progress()
    progress.console = Console(file=io.StringIO(), force_terminal=False)
    progress.on_train_start(trainer(0), None)
    progress.on_train_end(over, None)
    assert capsys.readouterr().out.startswith("epoch 3  step 40/40")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_without_an_end_has_no_number_of_steps(terminal, capsys):
    progress = Progress()
    progress.console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    progress.on_train_start(trainer(0, math.inf), None)
    for step in (2, 6, 10):
        progress.on_train_batch_end(trainer(step, math.inf), None, None, None, step)
        if progress.bar is not None:
            progress.bar.refresh()
    progress.on_train_end(trainer(10, math.inf), None)
    shown = progress.console.file.getvalue() + capsys.readouterr().out
    assert "step 10" in shown
    assert "inf" not in shown
    assert "left" not in shown


def test_without_a_terminal_each_validation_is_a_plain_line(tmp_path):
    printed = run("train", *QUICK, f"paths.runs={tmp_path}", "trainer.max_epochs=2")
    lines = [line for line in printed.splitlines() if line.startswith("epoch")]
    pattern = r"epoch \d  step (\d)/2  train \d\.\d{3}  val \d\.\d{3}  bits/dim  0:00:\d\d(.*)"
    (first, left), (last, nothing) = (re.fullmatch(pattern, line).groups() for line in lines)
    assert (first, last, nothing) == ("1", "2", "")
    assert re.fullmatch(r", 0:00:\d\d left", left)
    assert "\x1b" not in printed


def test_without_a_terminal_or_validations_lines_come_from_time_to_time(capsys, monkeypatch):
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    progress = Progress(every_seconds=30)
    progress.console = Console(file=io.StringIO())
    progress.on_train_start(trainer(0), None)
    for step in range(1, 11):
        clock += 10
        progress.on_train_batch_end(trainer(step), None, None, None, step)
    progress.on_train_end(trainer(10), None)
    steps = [line.split()[3] for line in capsys.readouterr().out.splitlines()]
    assert steps == ["4/40", "8/40", "10/40"]


def test_a_run_that_no_longer_improves_ends_early(tmp_path):
    printed = run(
        "train", *QUICK, f"paths.runs={tmp_path}", "run_id=a", "trainer.max_epochs=9",
        "callbacks=early_stopping", "callbacks.stop_early.patience=2",
        "callbacks.stop_early.min_delta=9", "test=false",
    )  # fmt: skip
    assert re.search(r"ended    val/bits_per_dim was \d\S+, no better in 2 validations", printed)
    assert len(figures(tmp_path / "a", "val/bits_per_dim")) == 3


def test_a_profile_is_kept_with_the_run(tmp_path):
    run("train", *QUICK[:-1], "debug=profile", "data.num_train=32", f"paths.runs={tmp_path}",
        "run_id=a", "test=false")  # fmt: skip
    assert "run_training_batch" in (tmp_path / "a/fit-profile.txt").read_text()


def test_the_librarys_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT / "docs/library.md").read_text(), re.S)
    namespace: dict = {}
    for example, shape in zip(blocks[1:], [(2, 8, 32), (2, 256)], strict=True):
        exec(example, namespace)
        assert namespace["output"].shape == shape
