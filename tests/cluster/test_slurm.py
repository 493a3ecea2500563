"""Slurm itself: runs on two nodes that are preempted, cancelled and lose a node; sweeps on it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from linear_transformers.runs.checkpoint import read_checkpoint
from tests.cluster.loopback import CannotStartError, Cluster, loopback, wait_until
from tests.conftest import PROJECT
from tests.faults.test_processes import RANKS
from tests.faults.test_stopping import EPOCHS
from tests.programs import QUICK, check_same_bits, read_back, run_apart, start, wandb_runs
from tests.runs.test_sweeps import results

PATIENCE = 300.0  # seconds: machines may be busy
WORDS = (*EPOCHS, "~callbacks.samples", "trainer.accelerator=cpu", "trainer.precision=32-true")
STEP = 6  # in the second of three epochs of four
WAITING = (
    "allow=[tests]", "+callbacks.at._target_=tests.faults.places.WaitAt",
    f"+callbacks.at.step={STEP}",
)  # fmt: skip
SLURM = {"PYTHON": sys.executable}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as held:
        try:
            cluster = held.enter_context(loopback())
        except CannotStartError as reason:
            pytest.skip(str(reason))
        yield cluster


@pytest.fixture(autouse=True)
def _threads_are_for_jobs_to_choose(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture(autouse=True)
def _no_job_is_left(cluster) -> Iterator[None]:
    yield
    cluster.end_jobs()


@pytest.fixture(scope="module")
def whole(cluster, tmp_path_factory) -> Path:
    """A run that nothing stopped: two processes of one machine, one with Slurm's commands."""
    runs = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**cluster.environment, "OMP_NUM_THREADS": "1"}.items():
            if name not in ("MASTER_ADDR", "MASTER_PORT"):  # another cluster's, to Lightning
                patch.setenv(name, value)
        said = run_apart("train", *WORDS, *RANKS, f"paths.runs={runs}", "run_id=whole")
    assert "srun" not in said  # which Lightning advises wherever it is installed
    return runs / "whole"


class Job:
    """A job of the project's own script, which waits at a step until it is told to end."""

    def __init__(self, cluster: Cluster, folder: Path, *words: str):
        self.cluster = cluster
        self.number = cluster.submit(
            f"--chdir={PROJECT}", f"--output={folder}/out", PROJECT / "cluster/train.sbatch",
            *WORDS, *WAITING, f"paths.runs={folder}", *words, **SLURM,
        )  # fmt: skip
        self.run = folder / f"train-{self.number}"
        self.output = folder / "out"

    @property
    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    @property
    def step(self) -> int:
        return read_checkpoint(self.run / "checkpoints/last.ckpt")["global_step"]

    def until(self, words: str) -> None:
        assert wait_until(lambda: words in self.said, PATIENCE), self.said

    def until_state(self, state: str) -> dict[str, str]:
        ended = (state, "COMPLETED", "FAILED", "CANCELLED")
        assert wait_until(lambda: self.state["JobState"] in ended, PATIENCE), self.said
        assert self.state["JobState"] == state, self.said + self.cluster.logs()
        return self.state

    @property
    def state(self) -> dict[str, str]:
        return self.cluster.job(self.number)

    def kill_tasks(self, node: str) -> None:
        """End this job's processes on a node, without a word."""
        mine = {f"SLURM_JOB_ID={self.number}", f"SLURMD_NODENAME={node}"}
        for process in Path("/proc").glob("[0-9]*/environ"):
            try:
                words = process.read_bytes().decode(errors="replace").split("\0")
            except OSError:  # gone, or a kernel's
                continue
            if mine <= {*words} and "SLURM_PROCID=1" in words:
                os.kill(int(process.parent.name), signal.SIGKILL)


def test_a_job_that_is_warned_of_its_end_goes_on_in_the_queue_to_the_same_bits(
    cluster, whole, tmp_path
):
    job = Job(cluster, tmp_path, "logger=wandb")
    job.until(f"waits at step {STEP}")
    # Within the ninety seconds of the script's --signal: Slurm looks every half minute.
    cluster.call("scontrol", "update", f"jobid={job.number}", "endtime=now+80")
    job.until(f"requeue  Slurm job {job.number} is in the queue again")
    assert job.until_state("PENDING")["Restarts"] == "1"
    assert job.step == STEP
    cluster.start_again(job.number, PATIENCE)
    assert job.until_state("COMPLETED")["Restarts"] == "1"
    assert "stopped  by SIGUSR1" in job.said
    assert f"last.ckpt, step {STEP}" in job.said
    assert "2 x cpu, 1 threads" in job.said  # of the one core that Slurm gives a task
    assert "Initializing distributed" not in job.said  # nor other lines of Lightning's
    assert "sync_dist" not in job.said
    check_same_bits(job.run, whole)
    begun = [read_back(log)["run"]["run_id"] for log in wandb_runs(job.run)]
    assert len(begun) == 2
    assert begun[0] == begun[1]


def test_a_cancelled_job_is_saved_and_stays_out_of_the_queue(cluster, tmp_path):
    """Slurm sends SIGTERM to W&B's service as well, which is gone before the run is saved."""
    job = Job(cluster, tmp_path, "logger=wandb")
    job.until(f"waits at step {STEP}")
    cluster.call("scancel", job.number)
    assert job.until_state("CANCELLED")["Restarts"] == "0"
    job.until("task 0: Exited with exit code 143")
    assert "stopped  by SIGTERM" in job.said
    assert f"run_id=train-{job.number} resume=auto" in job.said
    assert "in the queue" not in job.said
    assert "Traceback" not in job.said
    assert job.step == STEP


def test_a_job_whose_node_goes_down_goes_on_from_its_last_checkpoint(cluster, whole, tmp_path):
    job = Job(cluster, tmp_path)
    job.until(f"waits at step {STEP}")
    job.kill_tasks("n2")
    cluster.call("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    assert job.until_state("PENDING")["Restarts"] == "1"
    assert job.step == STEP - 2  # of the end of the first epoch
    assert "is in the queue again" not in job.said  # Slurm has seen to it
    cluster.call("scontrol", "update", "nodename=n2", "state=resume")
    cluster.start_again(job.number, PATIENCE)
    job.until_state("COMPLETED")
    assert f"last.ckpt, step {STEP - 2}" in job.said
    check_same_bits(job.run, whole)


@contextmanager
def sweep(cluster: Cluster, folder: Path, *words: str) -> Iterator[subprocess.Popen]:
    """A multirun by submitit, which would wait for ever for a job that was killed."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    process = start(
        "train", "-m", *QUICK, "test=false", f"paths.runs={folder}",
        "hydra/launcher=submitit_slurm", *words,
        env={**os.environ, **cluster.environment, **SLURM}, cwd=PROJECT,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_sweep_of_slurm_has_the_table_and_runs_only_what_is_missing_again(cluster, tmp_path):
    images = np.arange(24 * 64, dtype=np.uint8).reshape(24, 8, 8) % 17
    paths = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(paths[0], x_train=images, x_test=images)
    words = (
        "data=arrays", "data.num_levels=17", "data.val_size=8", f"data.path={paths[0]},{paths[1]}",
    )  # fmt: skip
    with sweep(cluster, tmp_path / "runs", *words) as first:
        printed, complained = first.communicate(timeout=PATIENCE)
    assert first.returncode == 1
    assert "2 jobs" in printed
    assert "b.npz does not exist" in complained
    assert "again    uv run train.py" in complained
    jobs, page = results(tmp_path / "runs")
    assert [job["status"] for job in jobs] == ["done", "failed"]
    assert page.count("failed") == 1
    paths[0].rename(paths[1])
    with sweep(cluster, tmp_path / "runs", *words, "sweep.skip_done=true") as again:
        _, complained = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, complained
    done, _ = results(tmp_path / "runs")
    assert [job["status"] for job in done] == ["done", "done"]
    assert done[0] == jobs[0]  # which could not run: its images are gone
    assert len(list((tmp_path / "runs").glob("*/checkpoints/last.ckpt"))) == 2


def test_a_job_of_a_sweep_that_is_preempted_is_requeued_by_submitit_alone(cluster, tmp_path):
    def logs() -> str:
        return "".join(path.read_text() for path in tmp_path.rglob("*_log.*"))

    words = (*WAITING, "trainer.limit_train_batches=8", "seed=1")
    with sweep(cluster, tmp_path, *words) as process:
        assert wait_until(lambda: f"waits at step {STEP}" in logs(), PATIENCE), logs()
        (number,) = cluster.call("squeue", "--noheader", "--format=%A").split()
        cluster.call("scancel", "--signal=USR2", number)
        assert wait_until(lambda: cluster.job(number)["JobState"] == "PENDING", PATIENCE), logs()
        assert cluster.job(number)["Restarts"] == "1"
        assert logs().count("Requeued job") == 1
        assert "is in the queue again" not in logs()
        cluster.start_again(number, PATIENCE)
        _, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complained
    assert f"last.ckpt, step {STEP}" in logs()
    assert [job["status"] for job in results(tmp_path)[0]] == ["done"]
