"""What a run leaves that was trained by a program of its own."""

from pathlib import Path

import pytest
import torch

from tests.programs import QUICK, metrics, run_apart


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
