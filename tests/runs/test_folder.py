"""A run's directory: made once, never written over."""

import os
import subprocess
import sys

import pytest

from linear_transformers.runs.folder import (
    RUN_ID,
    Run,
    check_name,
    claim_run,
    close_run,
    find_checkpoint,
    open_run,
)


@pytest.fixture(autouse=True)
def _outside_any_run(monkeypatch):
    monkeypatch.delenv(RUN_ID, raising=False)
    yield
    os.environ.pop(RUN_ID, None)


def opened(tmp_path, *, seed: int = 0, **claim) -> Run:
    run = claim_run(tmp_path, **({"run_id": None, "label": "digits-linear"} | claim))
    open_run(run, {"seed": seed})
    close_run(run)
    return run


def test_a_run_gets_a_name_and_its_configuration(tmp_path):
    run = opened(tmp_path, seed=7)
    assert run.path.parent == tmp_path
    assert run.path.name.startswith("digits-linear-20")
    assert "seed: 7" in (run.path / "config.yaml").read_text()
    assert "=" not in run.path.name


@pytest.mark.parametrize("label", ["mine/digits-linear", "test-my run"])
def test_a_name_that_is_made_is_one_that_may_be_given(tmp_path, label):
    """Of a choice in a folder of its group, or of a folder of any name."""
    run = opened(tmp_path, label=label)
    assert run.path.parent == tmp_path
    check_name(tmp_path, run.path.name, resume="auto")


def test_two_runs_of_one_second_do_not_share_a_directory(tmp_path):
    paths = {opened(tmp_path).path for _ in range(5)}
    assert len(paths) == 5


def test_a_name_that_is_taken_is_refused(tmp_path, raises_one_line):
    first = opened(tmp_path, run_id="mine", seed=1)
    with raises_one_line("run_id=mine", "exists already", "resume=auto"):
        opened(tmp_path, run_id="mine", seed=2)
    assert "seed: 1" in (first.path / "config.yaml").read_text()


@pytest.mark.parametrize(
    "resume", ["auto", "mine", "{runs}/mine", "{runs}/mine/checkpoints/last.ckpt"]
)
def test_a_run_can_be_continued_in_its_own_directory(tmp_path, resume):
    first = opened(tmp_path, run_id="mine")
    (first.checkpoints / "last.ckpt").touch()
    assert opened(tmp_path, run_id="mine", resume=resume.format(runs=tmp_path)) == first


def test_a_run_that_is_resumed_by_its_name_keeps_its_folder(tmp_path):
    first = opened(tmp_path, run_id="mine")
    (first.checkpoints / "last.ckpt").touch()
    assert opened(tmp_path, resume="mine") == first
    assert opened(tmp_path, run_id="branch", resume="mine").path == tmp_path / "branch"


def test_one_process_at_a_time_trains_a_run(tmp_path, raises_one_line):
    """The lock is the operating system's: it opens when its holder dies, however it dies."""
    hold = (
        "import sys, time; from pathlib import Path\n"
        "from linear_transformers.runs.folder import claim_run\n"
        "run = claim_run(Path(sys.argv[1]), run_id='mine', label='x', resume='auto')\n"
        "print('claimed', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", hold, tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "claimed\n"
    with raises_one_line("run_id=mine", f"process {process.pid} on"):
        opened(tmp_path, run_id="mine", resume="auto")
    process.kill()
    process.wait()
    process.stdout.close()
    opened(tmp_path, run_id="mine", resume="auto")
    opened(tmp_path, run_id="mine", resume="auto")


@pytest.mark.parametrize("run_id", ["../x", "a/b", ".hidden", "a b", "a=b", "sweeps", 200 * "x"])
def test_names_that_cannot_be_had_are_refused(tmp_path, run_id, raises_one_line):
    with raises_one_line("run_id="):
        claim_run(tmp_path / "runs", run_id=run_id, label="x")
    assert not (tmp_path / "runs").exists()


def test_further_processes_join_the_run(tmp_path):
    first = claim_run(tmp_path, run_id=None, label="a")
    open_run(first, {})
    assert os.environ[RUN_ID] == first.path.name
    assert claim_run(tmp_path, run_id=None, label="b") == first


def test_processes_from_outside_need_a_name_in_common(tmp_path, raises_one_line):
    with raises_one_line("run_id=NAME"):
        claim_run(tmp_path, run_id=None, label="a", rank=1)
    named = claim_run(tmp_path, run_id="all", label="a", rank=1)
    assert named.path == tmp_path / "all"
    assert not named.path.exists()  # the first process makes it


def test_a_job_that_never_began_leaves_its_name_free(tmp_path):
    close_run(claim_run(tmp_path, run_id="mine", label="a"))
    assert not list(tmp_path.iterdir())
    assert claim_run(tmp_path, run_id="mine", label="a").path.name == "mine"


def test_a_continued_run_keeps_the_configuration_it_began_with(tmp_path):
    run = opened(tmp_path, run_id="mine", seed=1)
    opened(tmp_path, run_id="mine", seed=2, resume="auto")
    assert "seed: 1" in (run.path / "config.yaml").read_text()
    assert "seed: 2" in (run.path / "config-2.yaml").read_text()


def test_a_start_writes_over_the_configuration_of_no_other(tmp_path):
    """One of them may have been damaged, and removed."""
    run = opened(tmp_path, run_id="mine", seed=1)
    opened(tmp_path, run_id="mine", seed=2, resume="auto")
    (run.path / "config.yaml").unlink()
    (run.path / "config-of-mine.yaml").write_text("another")
    opened(tmp_path, run_id="mine", seed=3, resume="auto")
    assert [path.name for path in run.configurations.values()] == ["config-2.yaml", "config-3.yaml"]
    assert "seed: 2" in (run.path / "config-2.yaml").read_text()


@pytest.mark.parametrize("run_id", [None, "mine"])
def test_a_folder_of_runs_that_is_not_there_is_named(tmp_path, run_id, raises_one_line):
    """A disk that is not mounted, behind a link."""
    (tmp_path / "runs").symlink_to(tmp_path / "nowhere")
    with raises_one_line("runs", "Not a directory"):
        claim_run(tmp_path / "runs", run_id=run_id, label="a")


def test_a_run_without_checkpoints_says_so(tmp_path, raises_one_line):
    with raises_one_line("no checkpoint", "best.ckpt", "no run"):
        Run(tmp_path).best_checkpoint()
    (tmp_path / "config.yaml").touch()
    with raises_one_line("no checkpoint", "best.ckpt", "ended before", "train again"):
        Run(tmp_path).best_checkpoint()


def test_the_newest_runs_are_named_where_one_is_not_there(tmp_path, raises_one_line):
    for age, name in enumerate("bcadefg"):
        checkpoints = tmp_path / name / "checkpoints"
        checkpoints.mkdir(parents=True)
        os.utime(checkpoints, (10 - age, 10 - age))
    with raises_one_line(f"Runs in {tmp_path}, newest first: b, c, a, d, e, ..."):
        find_checkpoint("nowhere", tmp_path)
