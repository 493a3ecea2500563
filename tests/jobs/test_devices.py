"""A run does not depend on how its global batches are divided over devices."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from linear_transformers.runs.checkpoint import read_checkpoint
from tests.conftest import PROJECT, TINY
from tests.faults.test_stopping import signal_at
from tests.programs import complaint, figures, join, metrics, run

# Adam's own eps, 1e-8, would let the rounding of a gradient near zero decide the size of a step.
COMMON = (
    *TINY, "trainer.precision=32-true", "scheduler=constant", "optimizer=adam", "optimizer.lr=3e-3",
    "optimizer.eps=1e-4", "model.dropout=0.1", "trainer.log_every_n_steps=1", "~callbacks.samples",
    "~callbacks.performance", "trainer.max_epochs=1",
)  # fmt: skip
LANGUAGE = (
    "data=text", f"data.path={PROJECT}/README.md", "data.segment=16", "trainer.max_steps=-1",
    "trainer.limit_train_batches=5", "trainer.check_val_every_n_epoch=1",
    "trainer.val_check_interval=1.0",
)  # fmt: skip
GLOBAL = 12  # divides by 1, 2 and 3
# Images and words come in batches of a size; speech and text in batches within a budget, of which
# each device has one: on one device, they follow each other.
SIZED = {
    "images": ("data=digits", "data.num_train=60", "trainer.max_epochs=2"),
    "copying": (
        "data=copy", "data.max_length=7", "data.num_sequences=50", "data.num_held_out=5",
    ),
    "language": LANGUAGE,
    "carried": (*LANGUAGE, "data.carry_state=true", "trainer.max_epochs=2"),
}  # fmt: skip
BUDGETED = {
    "speech": (
        "data=espeak", "data.num_train=24", "data.num_val=4", "data.num_test=5",
        "data.batch_frames=900", "trainer.check_val_every_n_epoch=1",
    ),
    "text": (
        "data=transduction", "data.function=sort", "data.num_train=200", "data.num_held_out=17",
        "data.batch_tokens=150",
    ),
}  # fmt: skip
TASKS = {**SIZED, **BUDGETED}
# What a process among several does, each of which was started from outside.
PROGRAM = """
import json, sys
from tests.programs import run

for words in json.loads(sys.argv[1]):
    try:
        run("train", *words)
    except SystemExit as end:  # told to stop
        assert end.code == 143, end.code
"""
CUT = ("trainer=sequence_parallel", "trainer.accelerator=cpu")
STOP = signal_at("train_batch_end", 3)  # of the five batches of an epoch
CONTINUED = ("images", "carried")
WHOLE = [name for name in SIZED if name != "carried"]  # what can be cut over devices


def divided(name: str, devices: int) -> tuple[str, ...]:
    """The options of a task's run on some devices."""
    if name in SIZED:
        return (*TASKS[name], f"data.batch_size={GLOBAL // devices}")
    return (*TASKS[name], "trainer.limit_train_batches=3")


def in_turn(name: str, batches: int) -> tuple[str, ...]:
    """The options of the same run on one device, which has what several have one by one."""
    words = (*divided(name, batches), f"trainer.accumulate_grad_batches={batches}")
    return words if name in SIZED else (*words, f"trainer.limit_train_batches={3 * batches}")


def placed(runs: Path, name: str) -> tuple[str, ...]:
    return f"paths.runs={runs}", f"paths.data={runs}/data", f"run_id={name}", "resume=auto"


def on_devices(devices: int, jobs: list[tuple[str, ...]]) -> list[subprocess.Popen]:
    """Start processes as torchrun does; they run some jobs one after the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [[*COMMON, f"trainer.devices={devices}", *job] for job in jobs]
    places = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(devices),
        "LOCAL_WORLD_SIZE": str(devices), "TORCHELASTIC_RUN_ID": "none", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(PROJECT),
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(words)], cwd=PROJECT,
            env={**os.environ, **places, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(devices)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, no_interpreter):
    """Each task's runs on two and three devices, and those on one that they are to equal."""
    folder = tmp_path_factory.mktemp("runs")

    def alone(name: str, *words: str) -> None:
        run("train", *COMMON, "trainer=cpu", *words, *placed(folder, name))

    for name in SIZED:
        alone(f"{name}-1", *divided(name, 1))
    alone("images-1-2", *in_turn("images", 2))
    for name in BUDGETED:
        for batches in (2, 3):
            alone(f"{name}-1-{batches}", *in_turn(name, batches))
    stops = []
    for name in CONTINUED:
        with pytest.raises(SystemExit):
            alone(f"{name}-from-1", *divided(name, 1), *STOP)
        two = (*divided(name, 2), "trainer=ddp_cpu")
        stops += [
            (*two, *placed(folder, f"{name}-from-1")),
            (*two, *placed(folder, f"{name}-from-2"), *STOP),
        ]
    processes = []
    for devices in (2, 3):
        jobs = [
            (*divided(name, devices), "trainer=ddp_cpu", *placed(folder, f"{name}-{devices}"))
            for name in TASKS
        ] + [(*divided(name, 1), *CUT, *placed(folder, f"{name}-cut-{devices}")) for name in WHOLE]
        processes += on_devices(devices, jobs + (stops if devices == 2 else []))
    assert not any("sync_dist" in output for output in join(processes))
    for name in CONTINUED:
        alone(f"{name}-from-2", *divided(name, 1))
    return folder


def assert_same_curves(folder: Path, expected: Path) -> None:
    """The losses of all steps, and the figures of all evaluations."""
    names = {
        name
        for row in metrics(expected)
        for name, value in row.items()
        if name.startswith(("train/", "val/", "test/")) and isinstance(value, float)
    }
    assert {name.partition("/")[0] for name in names} == {"train", "val", "test"}
    for name in names:
        ours, theirs = (figures(run, name) for run in (folder, expected))
        assert ours == pytest.approx(theirs, rel=2e-5), name


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("name", TASKS)
def test_several_devices_have_the_curve_of_one(runs, name, devices):
    """With dropout, masks of speech, and evaluations that do not divide by their number."""
    expected = f"{name}-1" if name in SIZED else f"{name}-1-{devices}"
    assert_same_curves(runs / f"{name}-{devices}", runs / expected)


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("name", WHOLE)
def test_sequences_cut_over_devices_have_the_curve_of_one(runs, name, devices):
    """Of images of 64 values, of words of which the copies alone count, and of padded texts."""
    assert_same_curves(runs / f"{name}-cut-{devices}", runs / f"{name}-1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model=softmax",), "SoftmaxAttention has no state that adds up"),
        (("data=espeak",), "SpeechRecognition is of others"),
        (("data=transduction",), "Translation is of others"),
    ],
)
def test_what_cannot_be_cut_is_refused(tmp_path, words, said):
    message = complaint("train", *COMMON, *CUT, "trainer.devices=1", *words, *placed(tmp_path, "a"))
    assert said in message
    assert "trainer=ddp" in message
    assert not (tmp_path / "a").exists()


def test_accumulated_batches_have_the_curve_of_one(runs):
    assert_same_curves(runs / "images-1-2", runs / "images-1")


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("name", CONTINUED)
def test_a_run_goes_on_with_another_number_of_devices(runs, name, before):
    """Within an epoch, with the same batches of all devices together, and the states of all."""
    ours, expected = (read(runs / run) for run in (f"{name}-from-{before}", f"{name}-1"))
    assert ours["global_step"] == expected["global_step"] == 10
    torch.testing.assert_close(ours["state_dict"], expected["state_dict"], rtol=1e-5, atol=1e-6)


def test_other_batches_within_an_epoch_are_refused(tmp_path):
    """Where the run was is no place in their order."""
    words = (*COMMON, "trainer=cpu", *TASKS["images"], *placed(tmp_path, "a"))
    with pytest.raises(SystemExit):
        run("train", *words, "data.batch_size=12", *STOP)
    message = complaint("train", *words, "data.batch_size=6")
    assert "after 3 of the 5 batches of an epoch; now an epoch has 10" in message


def read(folder: Path) -> dict[str, Any]:
    return read_checkpoint(folder / "checkpoints/last.ckpt")
