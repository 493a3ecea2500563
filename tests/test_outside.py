"""A task from outside of the package, with its model, data and files, goes through every job."""

from pathlib import Path

import pytest
import torch

from linear_transformers.config import choices
from linear_transformers.runs.checkpoint import read_checkpoint
from tests.programs import complaint, figures, metrics, run

CONF = Path(__file__).parent / "outside/conf"
QUIET = ("trainer=cpu", "logger=none")


@pytest.fixture
def allowed(monkeypatch):
    """Classes of this package may be named."""
    monkeypatch.setattr(choices, "_allowed", [])
    choices.allow("tests.outside")


def train(runs, *arguments: str) -> str:
    return run(
        "train", "--config-dir", str(CONF), "data=sums", *QUIET, f"paths.runs={runs}", *arguments
    )


def weights(runs, name: str) -> dict[str, torch.Tensor]:
    return read_checkpoint(runs / name / "checkpoints/last.ckpt")["state_dict"]


@pytest.mark.usefixtures("allowed")
def test_a_task_from_outside_trains_resumes_reports_and_samples(tmp_path):
    printed = train(tmp_path, "run_id=whole")
    assert "sums of 3 numbers" in printed
    assert "a small adder" in printed
    assert "adding" in printed
    assert f"next     uv run sample.py ckpt={tmp_path}/whole" in printed
    logged = {name for row in metrics(tmp_path / "whole") for name in row}
    assert {"val/right", "val/error", "test/error", "train/error", "samples/errors"} <= logged
    assert figures(tmp_path / "whole", "perf/tokens_per_second")

    train(tmp_path, "run_id=half", "trainer.max_epochs=1")
    train(tmp_path, "run_id=half", "ckpt_path=half")
    for name, value in weights(tmp_path, "whole").items():
        assert torch.equal(weights(tmp_path, "half")[name], value), name

    sampled = run(
        "sample", "--config-dir", str(CONF), f"paths.runs={tmp_path}", "ckpt=whole", "n=3"
    )
    assert sampled.count("->") == 3


@pytest.mark.usefixtures("allowed")
def test_its_options_are_checked_as_ours_are(tmp_path):
    with pytest.raises(SystemExit, match="Did you mean width"):
        train(tmp_path, "model.widht=3")
    with pytest.raises(SystemExit, match=r"task\.scale='big': it must be a valid number"):
        train(tmp_path, "task.scale=big")
    with pytest.raises(SystemExit, match="at least one number"):
        train(tmp_path, "data.terms=0")
    train(tmp_path, "run_id=a", "test=false", "trainer.max_epochs=1")
    with pytest.raises(SystemExit, match=r"task\.scale=1\.0, this run has task\.scale=2\.0"):
        train(tmp_path, "run_id=a", "ckpt_path=a", "task.scale=2")


@pytest.mark.usefixtures("allowed")
def test_the_best_checkpoint_is_the_one_with_the_most_where_that_is_good(tmp_path):
    train(tmp_path, "run_id=a", "trainer.max_epochs=6", "test=false", "optimizer.lr=0.05")
    right = figures(tmp_path / "a", "val/right")
    best = read_checkpoint(tmp_path / "a/checkpoints/best.ckpt")["epoch"]
    assert right[best] == max(right) > min(right)


def test_whoever_did_not_allow_it_is_told(tmp_path):
    arguments = ("--config-dir", str(CONF), "data=sums", *QUIET, f"paths.runs={tmp_path}")
    assert "tests.outside.addition" in complaint("train", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_a_class_that_is_not_allowed_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(choices, "_allowed", ["tests.outside"])
        train(tmp_path, "run_id=a", "test=false", "trainer.max_epochs=1")
    message = complaint("sample", "--config-dir", str(CONF), f"paths.runs={tmp_path}", "ckpt=a")
    assert "may not be named" in message
