"""The whole job, as programs: train, look at the run, sample from it, continue it."""

import shutil
import signal
from pathlib import Path

import pytest
import torch

from linear_transformers.runs.checkpoint import read_checkpoint
from tests.conftest import TINY
from tests.programs import QUICK, metrics, run, run_apart, start


@pytest.fixture(scope="module", params=["linear", "softmax"])
def trained(request, tmp_path_factory) -> tuple[Path, str]:
    """The directory of a run of one step, and what the run printed."""
    runs = tmp_path_factory.mktemp("runs")
    arguments = (*QUICK, f"model={request.param}", f"paths.runs={runs}", "run_id=tiny")
    printed = run_apart("train", *arguments, cwd=runs)
    return runs / "tiny", printed


def test_a_run_leaves_what_it_promises(trained):
    directory, printed = trained
    assert sorted(path.name for path in directory.iterdir()) == [
        ".lock", "checkpoints", "config.yaml", "metrics.jsonl", "provenance.json", "samples",
    ]  # fmt: skip
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == [
        "best.ckpt", "last.ckpt",
    ]  # fmt: skip
    logged = {name for row in metrics(directory) for name in row}
    assert {
        "train/bits_per_dim", "val/bits_per_dim", "test/bits_per_dim", "train/gradient_norm",
        "perf/tokens_per_second", "perf/peak_memory_gb", "lr-Muon/pg1", "baseline/histogram",
        "perf/model_flop_utilization", "speed/sampling",
    } <= logged  # fmt: skip
    pictures = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.png"))
    assert pictures == [
        "samples/test/grid.png", "samples/validation/0000001-completed.png",
        "samples/validation/0000001-generated.png",
    ]  # fmt: skip
    for words in (
        "recurrent",
        "recomputed",
        "this model",
        "counting beats",  # after so few steps
        "histogram   2.408",
        "neighbours  2.412",
        "sample.py ckpt=tiny",
    ):
        assert words in printed
    assert "Warning" not in printed


def test_a_checkpoint_holds_its_configuration_as_plain_data(trained):
    checkpoint = torch.load(trained[0] / "checkpoints/best.ckpt", weights_only=True)
    assert checkpoint["config"]["model"]["num_layers"] == 2
    assert checkpoint["shape"] == {"height": 8, "width": 8, "channels": 1, "num_levels": 17}


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_it_goes_on(tmp_path, sent, code):
    process = start(
        "train", *TINY, "trainer=cpu", "trainer.max_epochs=1000", f"paths.runs={tmp_path}",
        "run_id=stopped",
    )  # fmt: skip
    next(line for line in process.stdout if line.startswith("epoch"))
    process.send_signal(sent)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == code
    assert "stopped  by" in complaint
    assert "run_id=stopped resume=auto" in complaint
    assert read_checkpoint(tmp_path / "stopped/checkpoints/last.ckpt")["global_step"] > 0
    assert not list(tmp_path.rglob("*.part"))


def test_a_run_continues_from_its_last_checkpoint(trained, tmp_path):
    model = read_checkpoint(trained[0] / "checkpoints/last.ckpt")["config"]["model"]
    kind = "softmax" if "Softmax" in model["mixer"]["attention"]["_target_"] else "linear"
    shutil.copytree(trained[0], tmp_path / "tiny")
    count = len(metrics(tmp_path / "tiny"))
    run(
        "train", *QUICK, f"model={kind}", f"paths.runs={tmp_path}", "run_id=tiny",
        "resume=tiny", "trainer.max_epochs=2",
    )  # fmt: skip
    after = metrics(tmp_path / "tiny")
    assert len(after) > count
    assert after[:count] == metrics(trained[0])[:count]
    assert max(row["step"] for row in after) == 2
    assert read_checkpoint(tmp_path / "tiny/checkpoints/last.ckpt")["global_step"] == 2
