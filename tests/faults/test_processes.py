"""Several processes: they stop at one batch, go on to the same bits, and fail together."""

import os
import time

import pytest

from linear_transformers.runs.checkpoint import read_checkpoint
from tests.conftest import PROJECT
from tests.faults.test_machines import script
from tests.faults.test_stopping import EPOCHS, signal_at
from tests.programs import check_same_bits, start

RANKS = ("trainer=ddp_cpu",)


@pytest.mark.parametrize(
    ("options", "name", "rank", "code"),
    [
        (("trainer.accumulate_grad_batches=2", "data.batch_size=8"), "SIGUSR1", 0, 138),
        (
            (
                "data=espeak", "data.num_train=24", "data.num_val=4", "data.num_test=4",
                "data.batch_frames=900", "model.num_layers=1", "scheduler=constant",
            ), "SIGTERM", 1, 143,
        ),
    ],
    ids=["images", "speech"],
)  # fmt: skip
def test_two_processes_stop_at_one_batch_and_go_on_to_the_same_bits(
    tmp_path, options, name, rank, code
):
    """Only one is told; both save and end. Slurm's scheduler takes longer than Lightning lets a
    process live whose others have ended."""
    epochs = [word for word in EPOCHS if "batch_size" not in word]
    words = (*epochs, *RANKS, *options, "trainer.max_epochs=2", "~callbacks.samples")
    words = (*words, f"paths.runs={tmp_path}", f"paths.data={tmp_path}/data")
    uninterrupted = start("train", *words, "run_id=whole")  # at the same time
    script(tmp_path / "bin", "scontrol", f'sleep 7; echo "$@" >> {tmp_path}/told')
    places = {"PYTHONPATH": str(PROJECT), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    process = start(
        "train", *words, "run_id=part", "resume=auto", *signal_at("train_batch_end", 3, name),
        f"++callbacks.at.rank={rank}", env={**os.environ, **places, "SLURM_JOB_ID": "77"},
    )  # fmt: skip
    _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert "resume=auto" in said
    if name == "SIGUSR1":
        assert (tmp_path / "told").read_text() == "requeue 77\n"
    _, said = uninterrupted.communicate(timeout=120)
    assert uninterrupted.returncode == 0, said
    assert "Initializing distributed" not in said
    assert "sync_dist" not in said  # validations are summed over devices, without Lightning
    stopped = read_checkpoint(tmp_path / "part/checkpoints/last.ckpt")["global_step"]
    whole = read_checkpoint(tmp_path / "whole/checkpoints/last.ckpt")["global_step"]
    assert 0 < stopped < whole
    process = start("train", *words, "run_id=part", "resume=auto")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    check_same_bits(tmp_path / "part", tmp_path / "whole")


def test_one_process_that_fails_ends_the_others(tmp_path):
    """Within a minute, with its message."""
    begin = time.monotonic()
    process = start(
        "train", *EPOCHS, *RANKS, f"paths.runs={tmp_path}", "run_id=a", "allow=[tests]",
        "+callbacks.at._target_=tests.faults.places.FailAt", "+callbacks.at.step=2",
        "+callbacks.at.rank=1", env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    _, said = process.communicate(timeout=120)
    assert time.monotonic() - begin < 60
    assert process.returncode not in (0, None)
    assert "told to fail on device 1" in said
