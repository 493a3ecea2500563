"""The whole job, as programs: train, look at the run, sample from it, continue it."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from linear_transformers.data import Digits
from linear_transformers.runtime.checkpoint import load_checkpoint
from tests.conftest import PROJECT, TINY
from tests.programs import QUICK, complaint, metrics, run, run_apart


@pytest.fixture(scope="module", params=["linear", "softmax"])
def trained(request, tmp_path_factory) -> tuple[Path, str]:
    """The directory of a run of one step, and what the run printed."""
    runs = tmp_path_factory.mktemp("runs")
    arguments = (*QUICK, f"model={request.param}", f"paths.runs={runs}", "run_id=tiny")
    printed = run_apart("train", *arguments, cwd=runs)
    return runs / "tiny", printed


def sampled(trained: tuple[Path, str], *arguments: str) -> str:
    directory = trained[0]
    return run("sample", f"paths.runs={directory.parent}", "ckpt=tiny", *arguments)


def refused(trained: tuple[Path, str], *arguments: str) -> str:
    return complaint("sample", f"paths.runs={trained[0].parent}", "ckpt=tiny", *arguments)


def test_a_run_leaves_what_it_promises(trained):
    directory, printed = trained
    assert sorted(path.name for path in directory.iterdir()) == [
        "checkpoints", "config.yaml", "metrics.jsonl", "samples",
    ]  # fmt: skip
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == [
        "best.ckpt", "last.ckpt",
    ]  # fmt: skip
    logged = {name for row in metrics(directory) for name in row}
    assert {
        "train/bits_per_dim", "val/bits_per_dim", "test/bits_per_dim", "train/gradient_norm",
        "perf/tokens_per_second", "perf/peak_memory_gb", "lr-RAdam", "baseline/histogram",
    } <= logged  # fmt: skip
    for words in ("this model", "histogram   2.408", "neighbours  2.412", "sample.py ckpt=tiny"):
        assert words in printed
    assert "Warning" not in printed


def test_a_checkpoint_holds_its_configuration_as_plain_data(trained):
    checkpoint = torch.load(trained[0] / "checkpoints/best.ckpt", weights_only=True)
    assert checkpoint["config"]["model"]["num_layers"] == 2
    assert checkpoint["image_shape"] == {"height": 8, "width": 8, "channels": 1, "num_levels": 17}


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_it_goes_on(tmp_path, sent, code):
    process = subprocess.Popen(
        [sys.executable, PROJECT / "train.py", *TINY, "trainer=cpu", "trainer.max_epochs=1000",
         f"paths.runs={tmp_path}", "run_id=stopped"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell that runs the tests in the background makes its children deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("epoch"))
    process.send_signal(sent)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == code
    assert "stopped at step" in complaint
    assert "run_id=stopped ckpt_path=stopped" in complaint
    assert load_checkpoint(tmp_path / "stopped/checkpoints/last.ckpt")["global_step"] > 0
    assert not list(tmp_path.rglob("*.part"))


def test_samples_complete_what_was_given(trained, tmp_path):
    printed = sampled(trained, f"out={tmp_path}/out", "n=3", "rows=5", "seed=4", "check=true")
    assert "largest difference" in printed
    record = json.loads((tmp_path / "out/samples.json").read_text())
    assert record["step_against_forward"] < 1e-5
    assert record["seed"] == 4
    assert record["images_per_second"] > 0
    assert len(record["sha256"]) == 64
    assert record["config"]["data"]["_target_"].endswith("Digits")
    names = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert names == ["0000.png", "0001.png", "0002.png", "grid.png"]
    original = Digits(1).splits.test[0][:5, :, 0] * 255.0 / 16
    image = np.asarray(Image.open(tmp_path / "out/0000.png"))
    assert image.shape == (8, 8, 3)
    np.testing.assert_allclose(image[:5, :, 0], original, atol=1)


def test_the_same_seed_gives_the_same_image_at_any_batch_size(trained, tmp_path):
    for batch in (1, 3, 16):
        sampled(trained, f"out={tmp_path}/{batch}", "n=7", f"batch={batch}", "mode=generate")
    for i in range(7):
        images = {(tmp_path / f"{batch}/{i:04d}.png").read_bytes() for batch in (1, 3, 16)}
        assert len(images) == 1


def test_generating_needs_no_test_images_for_its_check(trained, tmp_path):
    """Of which there are 180."""
    printed = sampled(trained, f"out={tmp_path}/out", "n=181", "mode=generate", "check=true")
    assert "largest difference" in printed
    assert len(list((tmp_path / "out").glob("*.png"))) == 182


def test_samples_land_in_the_run_and_overwrite_nothing(trained):
    before = set((trained[0] / "samples").iterdir())
    sampled(trained, "n=1")
    sampled(trained, "n=1")
    new = set((trained[0] / "samples").iterdir()) - before
    assert len(new) == 2
    assert "not empty" in refused(trained, f"out={min(new)}")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("rows=9", ("rows=9", "8 rows")),
        ("n=181", ("n=181", "180 test images")),
        ("device=abacus", ("device=abacus", "device=cpu")),
        ("data_root=x", ("data_root=x", "has no root")),
    ],
)
def test_a_request_the_checkpoint_cannot_serve_gets_one_line(trained, argument, words):
    message = refused(trained, argument)
    assert all(word in message for word in words)


def test_a_run_continues_from_its_last_checkpoint(trained, tmp_path):
    model = load_checkpoint(trained[0] / "checkpoints/last.ckpt")["config"]["model"]
    kind = "softmax" if "Softmax" in model["attention"]["_target_"] else "linear"
    shutil.copytree(trained[0], tmp_path / "tiny")
    count = len(metrics(tmp_path / "tiny"))
    run(
        "train", *QUICK, f"model={kind}", f"paths.runs={tmp_path}", "run_id=tiny",
        "ckpt_path=tiny", "trainer.max_epochs=2",
    )  # fmt: skip
    after = metrics(tmp_path / "tiny")
    assert len(after) > count
    assert after[:count] == metrics(trained[0])[:count]
    assert max(row["step"] for row in after) == 2
    assert load_checkpoint(tmp_path / "tiny/checkpoints/last.ckpt")["global_step"] == 2
