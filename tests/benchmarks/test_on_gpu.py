"""Every stage of on_gpu.sh runs: at toy sizes, on a CPU, with what such a machine has."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import pieces
from linear_transformers.data.batches import EvaluationBatches
from linear_transformers.kernels import compiling
from linear_transformers.runs.checkpoint import read_checkpoint
from tests.conftest import PROJECT
from tests.files import write_mnist

# Dependencies of ours that neither such a machine has nor the wheels that travel hold.
ABSENT = ("wandb", "espeakng_loader", "mlflow")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    """What one stage compiles is there in the next, as on a machine that is lent; and of C++,
    what the other tests have."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "extensions").mkdir()
    (folder / "extensions/linear_transformers").symlink_to(compiling.cache_folder())
    return str(folder)


@pytest.fixture
def stage(tmp_path, cache):
    """Runs a stage in folders of its own; what it printed."""
    for name in ABSENT:
        folder = tmp_path / "absent"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is not there')")
    environment = {
        **os.environ, "DRY_RUN": "1", "PYTHON": sys.executable, "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1", "CACHE": cache,
        **{name: str(tmp_path / name.lower()) for name in ("WHEELS", "DATA", "RUNS", "RESULTS")},
    }  # fmt: skip

    def call(*arguments: str, code: int = 0, **changes: str) -> str:
        done = subprocess.run(
            [PROJECT / "benchmarks/on_gpu.sh", *arguments], env={**environment, **changes},
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


def test_the_probe_says_what_is_there(stage, tmp_path):
    stage("probe")
    rows = json.loads((tmp_path / "results/probe-cpu.json").read_text())["rows"]
    good = {(row["check"], row["how"]): row["good"] for row in rows}
    assert good["exact", "default"]
    assert good["rounding", "default, chunks of 64, 4 warps"]
    assert good["assembler", "default"]
    found = {row["check"]: row["found"] for row in rows if not row["good"]}
    assert found.keys() == {"memcheck", "racecheck"}


def test_parity_runs_the_tests_that_need_a_gpu(stage):
    printed = stage("parity", "-ra")
    assert "needs a CUDA device" in printed
    assert "error" not in printed


def test_operators_are_measured(stage, tmp_path):
    printed = stage("operators")
    rows = json.loads((tmp_path / "results/operators-cpu.json").read_text())["rows"]
    measured = {row["kernel"]: row for row in rows if "error" not in row}
    assert {"chunkwise", "triton", "sdpa"} <= measured.keys()
    assert all("times_sdpa_forward" in row for row in measured.values())
    assert "fla is not measured" in printed


def test_the_sweep_compiles_ours_in_other_ways(stage, tmp_path):
    stage("sweep")
    rows = json.loads((tmp_path / "results/operators-sweep-cpu.json").read_text())["rows"]
    assert [row["kernel"] for row in rows] == ["triton", "triton@chunk=16,warps=1"]
    assert all(row["forward_ms"] > 0 for row in rows)


def test_a_stage_ends_by_itself(stage, tmp_path):
    printed = stage("sweep", STAGE_SECONDS="1")
    assert "stopped  after STAGE_SECONDS=1" in printed


def test_sampling_is_measured_at_both_sizes(stage, tmp_path):
    stage("sampling")
    for name, length in (("mnist", 784), ("cifar10", 3072)):
        file = tmp_path / f"results/sampling-{name}-cpu.json"
        rows = json.loads(file.read_text())["rows"]
        assert [row["method"] for row in rows] == ["captured", "recurrent", "softmax, cached"]
        assert {row["length"] for row in rows} == {length}


def test_training_steps_are_measured(stage, tmp_path):
    stage("steps")
    rows = json.loads((tmp_path / "results/training-cpu.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["linear", "softmax"]


def test_a_run_on_mnist_goes_on_where_it_stopped_and_comes_home(stage, tmp_path, monkeypatch):
    """Its data arrive in a tar, and its weights leave in pieces."""
    write_mnist(tmp_path / "elsewhere")
    (tmp_path / "data").mkdir()
    into = ("--file", tmp_path / "data/mnist.tar", "-C", tmp_path / "elsewhere", "MNIST")
    subprocess.run(["tar", "--create", *into], check=True)
    sizes = ("data.batch_size=2", "data.val_size=5")
    assert "bits/dim" in stage("train-mnist", *sizes)
    stage("train-mnist", *sizes, "trainer.max_epochs=2")
    assert (tmp_path / "results/on-gpu-mnist-metrics.jsonl").is_file()
    lines = (tmp_path / "runs/on-gpu-mnist/metrics.jsonl").read_text().splitlines()
    steps = [row["step"] for row in map(json.loads, lines) if "train/bits_per_dim" in row]
    assert steps == [0, 1]
    for part in ("weights", "moments"):
        stage(part, "on-gpu-mnist")
    run = tmp_path / "runs/on-gpu-mnist/checkpoints/last.ckpt"
    pieces.join(tmp_path / "results", tmp_path / "whole.ckpt")
    joined, original = (read_checkpoint(path) for path in (tmp_path / "whole.ckpt", run))
    assert joined.keys() == original.keys()
    torch.testing.assert_close(joined["state_dict"], original["state_dict"], rtol=0, atol=0)
    moments = [x["optimizer_states"][0]["state"] for x in (joined, original)]
    torch.testing.assert_close(*moments, rtol=0, atol=0)
    monkeypatch.setattr(pieces, "SIZE", 20_000)
    several = pieces.split(run, tmp_path / "several", "weights")
    assert len(several) > 1
    later = torch.load(run, weights_only=True) | {"global_step": 3}
    torch.save(later, tmp_path / "later.ckpt")
    mixed = tmp_path / "mixed"
    pieces.split(run, mixed, "weights")
    pieces.split(tmp_path / "later.ckpt", mixed, "moments")
    with pytest.raises(SystemExit, match="weights of step 2 and moments of step 3"):
        pieces.join(mixed, tmp_path / "mixed.ckpt")
    pieces.join(tmp_path / "several", tmp_path / "again.ckpt")  # enough to sample from
    assert read_checkpoint(tmp_path / "again.ckpt")["optimizer_states"] == []
    several[1].unlink()
    with pytest.raises(SystemExit, match=f"holds {len(several) - 1} pieces"):
        pieces.join(tmp_path / "several", tmp_path / "third.ckpt")
    with pytest.raises(SystemExit, match="exists already"):
        pieces.join(tmp_path / "several", tmp_path / "again.ckpt")


def test_training_on_cifar10_takes_its_arrays(stage, tmp_path):
    (tmp_path / "data").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "data/cifar10.npz", x_train=images, x_test=images[:2])
    printed = stage("train-cifar10", "data.batch_size=2", "data.val_size=2")
    assert "32 x 32 x 3" in printed
    assert "step 1/1  " in printed  # a dry run takes one
    assert "bits/dim" in printed


STAND_IN = """#!/usr/bin/env bash
if [[ $1 == -c ]]; then echo /nowhere; exit; fi
run=$RUNS/on-gpu-mnist last=$RUNS/on-gpu-mnist/checkpoints/last.ckpt
if [[ $* == *train=false* ]]; then echo "tested $*"; exit; fi
mkdir -p "$run"; touch "$run/metrics.jsonl"
trap 'mkdir -p "${last%/*}"; [[ $SAVES ]] && touch "$last"; exit 143' TERM
echo "training $*"; while true; do sleep 0.1; done
"""


def test_training_stops_when_its_time_is_up(stage, tmp_path):
    """A program that never ends by itself stands in for Python."""
    program = tmp_path / "python"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    changes = {"PYTHON": str(program), "SECONDS_TO_TRAIN": "1"}
    printed = stage("train-mnist", code=1, SAVES="", **changes)
    assert "error: nothing was saved in SECONDS_TO_TRAIN=1" in printed
    printed = stage("train-mnist", SAVES="1", **changes)
    assert "run_id=on-gpu-mnist resume=auto" in printed.split("tested")[0]
    assert "tested" in printed


def test_batches_of_one_size_are_compiled_once():
    script = (PROJECT / "benchmarks/on_gpu.sh").read_text()
    batches = map(int, re.findall(r"data\.batch_size=(\d+)", script))
    of_mnist, of_cifar10 = (55000, 5000, 10000), (45000, 5000, 10000)
    sizes = (of_mnist, of_mnist, of_cifar10)
    for batch, (train, *others) in zip(batches, sizes, strict=True):
        assert train % batch == 0
        for count in others:
            assert {len(part) for part in EvaluationBatches(count, batch)} == {batch}


def test_weights_are_those_of_a_run_that_is_named(stage):
    assert "error: give the run: benchmarks/on_gpu.sh weights RUN" in stage("weights", code=1)


def test_other_stages_are_explained(stage):
    assert "train-cifar10" in stage("everything", code=2)
    assert Path(PROJECT / "benchmarks/on_gpu.sh").stat().st_mode & 0o100
