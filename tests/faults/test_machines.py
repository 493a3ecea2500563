"""Schedulers, full disks and kills: real ones, as far as a test machine has them."""

import json
import os
import re
import resource
import shlex
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from linear_transformers.runs.checkpoint import read_checkpoint
from tests.faults.test_stopping import EPOCHS, signal_at
from tests.programs import QUICK, complaint, run, start


def script(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A job of Slurm, as srun starts one; its `scontrol` writes down what it is told."""
    script(tmp_path / "bin", "scontrol", f'echo "$@" >> {tmp_path}/told')
    script(tmp_path / "bin", "srun", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    for name, value in {
        "JOB_ID": 77, "NTASKS": 1, "JOB_NAME": "train", "PROCID": 0, "LOCALID": 0, "NODEID": 0,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    return lambda: (tmp_path / "told").read_text() if (tmp_path / "told").exists() else ""


@pytest.mark.parametrize(
    ("name", "resume", "told"),
    [
        ("SIGUSR1", ("resume=auto",), "requeue 77\n"),
        ("SIGUSR2", ("resume=auto",), "requeue 77\n"),
        ("SIGTERM", ("resume=auto",), ""),  # its user cancelled it
        ("SIGUSR1", (), ""),  # it would begin anew
    ],
)
def test_a_job_of_slurm_is_requeued_once_and_ends(tmp_path, slurm, capsys, name, resume, told):
    words = (*EPOCHS, f"paths.runs={tmp_path}/runs", "run_id=a", *resume)
    with pytest.raises(SystemExit) as end:
        run("train", *words, *signal_at("train_batch_end", 2, name))
    assert end.value.code == 128 + signal.Signals[name]
    assert slurm() == told
    said = capsys.readouterr().err
    assert ("is in the queue again" in said) == bool(told)
    assert ("would start anew" in said) == (not resume)
    assert read_checkpoint(tmp_path / "runs/a/checkpoints/last.ckpt")["global_step"] == 2
    assert not list(tmp_path.rglob("hpc_ckpt*"))


@pytest.mark.parametrize(
    ("resume", "told"),
    [(("resume=auto",), "requeue 77\n"), (("++resume=auto",), "requeue 77\n"), ((), "")],
)
def test_a_job_that_is_warned_while_it_loads_is_requeued_too(tmp_path, slurm, resume, told):
    process = start("train", *EPOCHS, f"paths.runs={tmp_path}/runs", "run_id=a", *resume)
    assert process.stderr.readline() == "loading  PyTorch\n"
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 138, said
    assert slurm() == told
    assert ("would start anew" in said) == (not resume)


def test_a_scheduler_that_refuses_is_quoted(tmp_path, slurm, capsys):
    script(tmp_path / "bin", "scontrol", "echo 'Job is not requeueable' >&2; exit 1")
    words = (*EPOCHS, f"paths.runs={tmp_path}/runs", "run_id=a", "resume=auto")
    with pytest.raises(SystemExit):
        run("train", *words, *signal_at("train_batch_end", 2, "SIGUSR1"))
    assert "could not be requeued: Job is not requeueable" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["TERM", "USR1", "USR2"])
def test_slurm_may_end_the_job_before_it_answers(tmp_path, slurm, capsys, name):
    script(tmp_path / "bin", "scontrol", f"kill -{name} $$; echo $@ >> {tmp_path}/told")
    words = (*EPOCHS, f"paths.runs={tmp_path}/runs", "run_id=a", "resume=auto")
    with pytest.raises(SystemExit):
        run("train", *words, *signal_at("train_batch_end", 2, "SIGUSR1"))
    assert slurm() == "requeue 77\n"
    assert "Slurm job 77 is in the queue again" in capsys.readouterr().err


def test_a_login_node_of_a_cluster_warns_of_nothing(tmp_path, monkeypatch, capsys):
    script(tmp_path / "bin", "srun", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    run("train", *QUICK, f"paths.runs={tmp_path}/runs", "test=false")
    assert "srun" not in capsys.readouterr().err


@contextmanager
def files_no_larger_than(size: int):
    """Let writes fail that make a file larger, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        # Python would keep what it could write of a module that is first imported in here.
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_the_last_checkpoint_and_names_the_room(tmp_path):
    words = (*QUICK, f"paths.runs={tmp_path}", "run_id=a", "resume=auto", "test=false")
    run("train", *words)
    path = tmp_path / "a/checkpoints/last.ckpt"
    before = path.read_bytes()
    with files_no_larger_than(len(before) // 2):
        message = complaint("train", *words, "trainer.max_epochs=2", "~callbacks.samples")
    assert "could not be written" in message
    assert "are free there" in message
    assert path.read_bytes() == before
    assert not list(tmp_path.rglob("*.part"))
    run("train", *words, "trainer.max_epochs=2")
    assert read_checkpoint(path)["global_step"] == 2


def test_a_full_disk_while_sampling_is_one_line(tmp_path):
    run("train", *QUICK, f"paths.runs={tmp_path}", "run_id=a", "test=false")
    with files_no_larger_than(4000):
        message = complaint("sample", f"ckpt={tmp_path}/a", "images=3", f"out={tmp_path}/out")
    assert f"{tmp_path}/out" in message
    assert "are free there" in message
    assert not list(tmp_path.rglob("*.part"))


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    process = start(
        "train", *EPOCHS, "trainer.max_epochs=100000", "trainer.check_val_every_n_epoch=50000",
        "callbacks.progress.every_seconds=0.1", f"paths.runs={tmp_path}", "run_id=a",
    )  # fmt: skip
    next(line for line in process.stdout if line.startswith("epoch"))
    process.send_signal(signal.SIGSTOP)  # so that the first one finds no end of a batch
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)


def test_a_killed_run_goes_on(tmp_path):
    words = (*EPOCHS, f"paths.runs={tmp_path}", "run_id=a", "resume=auto")
    process = start("train", *words, "trainer.max_epochs=100000")
    lines = (line for line in process.stdout if line.startswith("epoch"))
    for _ in range(3):
        next(lines)
    process.kill()
    process.communicate()
    (tmp_path / "a/checkpoints/.last.ckpt-999999@elsewhere.part").touch()
    step = read_checkpoint(tmp_path / "a/checkpoints/last.ckpt")["global_step"]
    printed = run("train", *words, f"trainer.max_epochs={step // 4 + 1}")
    assert f"last.ckpt, step {step}" in printed
    assert read_checkpoint(tmp_path / "a/checkpoints/last.ckpt")["global_step"] == step + 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_whoever_speaks_a_corpus_ends_with_the_run(tmp_path, number, code):
    process = start(
        "train", "data=espeak", "trainer=cpu", "logger=none", f"paths.runs={tmp_path}/runs",
        f"paths.data={tmp_path}",
    )  # fmt: skip
    while not (parts := list(tmp_path.glob("espeak/.*.part/train/*.flac"))):
        assert process.poll() is None
        time.sleep(0.05)
    (speaker,) = re.findall(r"-(\d+)@", str(parts[0]))
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    for _ in range(200):
        if not Path(f"/proc/{speaker}").exists():
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"process {speaker} still speaks")


def test_a_model_that_cannot_be_is_refused_before_a_corpus_is_spoken(tmp_path):
    message = complaint("train", "data=espeak", "model=sparse", f"paths.data={tmp_path}")
    assert "SparseAttention has no bidirectional form" in message
    assert not list(tmp_path.iterdir())


def test_a_stopped_job_of_sampling_goes_on_by_the_command_that_it_prints(tmp_path):
    run("train", *QUICK, f"paths.runs={tmp_path}", "run_id=a", "test=false")
    process = start(
        "sample", f"ckpt={tmp_path}/a", "mode=generate", "n=5000", "batch=2", "stepper=recurrent",
        f"out={tmp_path}/the out",
    )  # fmt: skip
    listed = tmp_path / "the out/samples.json"  # images are written first, then listed
    while not listed.exists() or len(json.loads(listed.read_text())["images"]) < 4:
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "of 5000 images" in said
    (line,) = [line for line in said.splitlines() if line.startswith("next")]
    words = shlex.split(line)[4:]
    assert "continue=true" in words
    assert 4 <= len(json.loads(listed.read_text())["images"]) < 5000
    message = complaint("sample", *[word for word in words if word != "n=5000"], "n=3")
    assert "has n=5000, this one n=3" in message
