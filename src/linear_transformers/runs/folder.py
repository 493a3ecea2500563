"""A run's directory: runs/<run_id>/ with config.yaml, metrics.jsonl, checkpoints/, samples/."""

import itertools
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from errno import ENOLCK, ENOSYS, ENOTDIR, EOPNOTSUPP
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from linear_transformers.files import (
    HOST,
    next_numbered,
    numbered,
    remove_leftovers,
    replacing,
)
from linear_transformers.runs.exported import WEIGHTS, folder_by_name, found_by_name

# Lightning starts further processes with this process's environment: they join the same run.
RUN_ID = "LINEAR_TRANSFORMERS_RUN_ID"
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # where launchers say which process this is
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
LONGEST_NAME = 150  # characters: file systems have 255, and other names are made of it
AUTO = "auto"  # resume=auto: start the run, or continue it
RESERVED = ("sweeps",)  # the folder of multiruns, beside the runs


@dataclass(frozen=True)
class Run:
    """Where the files of one run are.

    Attributes:
        path: The run's folder.
        lock: The lock of the process that trains it.
    """

    path: Path
    lock: FileLock | None = field(default=None, compare=False, repr=False)

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def last_checkpoint(self) -> Path:
        return self.checkpoints / "last.ckpt"

    @property
    def kept(self) -> dict[str, Path]:
        """The best checkpoint and the last, by these names, as far as they are there."""
        paths = {name: self.checkpoints / f"{name}.ckpt" for name in ("best", "last")}
        return {name: path for name, path in paths.items() if path.is_file()}

    @property
    def configurations(self) -> dict[int, Path]:
        """The configurations of its starts, by number and in order; config.yaml is the first's."""
        return numbered(self.path / "config.yaml")

    def checkpoints_to_resume(self) -> list[Path]:
        """Return the checkpoints that there are: the last, then the others, the newest first."""
        found = sorted(self.checkpoints.glob("*.ckpt"), key=lambda path: -path.stat().st_mtime)
        return sorted(found, key=lambda path: path != self.last_checkpoint)

    def best_checkpoint(self) -> Path:
        """Return the checkpoint to sample from: the best, else the last.

        Raises:
            ValueError: The run has none.
        """
        for path in self.kept.values():
            return path
        why = "It is no run."
        if self.configurations:
            why = "It ended before one was saved, or they were removed: train again."
        raise ValueError(
            f"{self.path} has no checkpoint: {self.checkpoints} holds neither best.ckpt nor "
            f"last.ckpt. {why}"
        )


def claim_run(
    runs: Path, *, run_id: str | None, label: str, resume: str | None = None, rank: int = 0
) -> Run:
    """Make the run's folder, empty, or take over that of the run which is continued.

    No other job can take it until `close_run`, or the end of this process however it ends.

    Args:
        runs: The folder of all runs.
        run_id: The name of the run's folder; None is the run that is resumed, or else a new name
            of `label` and the time.
        label: What the run is, for its name.
        resume: The run or checkpoint that it starts from, or `auto`.
        rank: This process's number; the first one makes the folder.

    Raises:
        ValueError: `run_id` is not a plain name, or is taken by a run that this one does
            not continue, or that another process trains; or the folder cannot be made.
    """
    if _joins(rank):
        return Run(runs / _joined_id(run_id))
    label = re.sub(r"[^\w.-]", "-", label)  # a choice may stand in a folder of its group
    name = run_id or run_resumed(resume, runs) or f"{label}-{datetime.now():%Y%m%d-%H%M%S}"
    if run_id is not None:
        check_name(runs, run_id, resume=resume)
    run = Run(runs / name)
    if _is_continued(resume, run):
        return _locked(run)
    try:
        return _locked(Run(claim_folder(run.path, numbered=run_id is None)))
    except FileExistsError as error:
        raise _taken(run) from error
    except OSError as error:
        raise _unwritable(run, error) from error


def check_name(runs: Path, name: str, *, resume: str | None) -> None:
    """Refuse a run's name that cannot be had.

    Args:
        runs: See `claim_run`.
        name: The name.
        resume: See `claim_run`.

    Raises:
        ValueError: See `claim_run`.
    """
    if not re.fullmatch(r"\w[\w.-]*", name) or len(name) > LONGEST_NAME:
        raise ValueError(
            f"run_id={name} is not a plain name. Use letters, digits, '.', '_' and '-', "
            f"{LONGEST_NAME} at most."
        )
    if name in RESERVED:
        raise ValueError(f"run_id={name} is the folder of multiruns. Choose another name.")
    run = Run(runs / name)
    if run.path.exists() and not _is_continued(resume, run):
        raise _taken(run)


def run_resumed(resume: str | None, runs: Path) -> str | None:
    """Return the name of the run that `resume` means, if it is one of `runs`."""
    if resume in (None, AUTO):
        return None
    folder = folder_of(find_checkpoint(resume, runs)).resolve()
    return folder.name if folder.parent == runs.resolve() else None


def claim_folder(path: Path, *, numbered: bool) -> Path:
    """Make a new folder: `path`, or where that is taken and `numbered`, path-2, path-3, ...

    Raises:
        FileExistsError: The path is taken, and not to be numbered.
        OSError: It cannot be made.
    """
    claimed, above = path, path.parent
    try:
        above.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # a file, or a link to nowhere
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), error.filename) from error
    for count in itertools.count(2):
        try:
            claimed.mkdir()
        except FileExistsError:
            if not numbered:
                raise
            claimed = path.with_name(f"{path.name}-{count}")
        else:
            break
    return claimed


def open_run(run: Run, config: Mapping[str, Any], *, rank: int = 0) -> None:
    """Write the run's configuration; processes that are started from now on join the run.

    Raises:
        ValueError: The folder cannot be written.
    """
    if _joins(rank):
        return
    try:
        for folder in (run.checkpoints, run.samples):
            folder.mkdir(exist_ok=True)
        for folder in (run.path, run.checkpoints, run.samples, *run.samples.glob("*/")):
            # Of a run that is continued because it was killed, in a container of another name.
            trained = folder.parent != run.samples or folder.name in ("validation", "test")
            remove_leftovers(folder, alone=trained and run.lock is not None)
        with tempfile.TemporaryFile(dir=run.path):
            pass  # mkdir succeeds on some file systems that refuse the first file
        # A continued run keeps what it was started with, and says what it goes on with.
        with replacing(next_numbered(run.path / "config.yaml")) as partial:
            partial.write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise _unwritable(run, error) from error
    os.environ[RUN_ID] = run.path.name


def close_run(run: Run, *, rank: int = 0) -> None:
    """Let the next job of this process make a run of its own; leave no empty folder."""
    if rank == 0:
        os.environ.pop(RUN_ID, None)
        if run.path.is_dir() and {path.name for path in run.path.iterdir()} <= {LOCK}:
            (run.path / LOCK).unlink(missing_ok=True)
            run.path.rmdir()
    if run.lock is not None:
        run.lock.release()


def find_checkpoint(name: str, runs: Path, *, latest: bool = False) -> Path:
    """Return the file that a run's name, a run's folder or a path means.

    A run goes before a file or folder of that name in the current directory.

    Args:
        name: The name or path; or that of an exported model: see `runs.exported`.
        runs: The folder of all runs.
        latest: Whether a run means its last checkpoint, and not its best.

    Raises:
        ValueError: None of these is there.
    """
    if not name:  # which Path takes for the current directory
        raise ValueError(
            "The name of a run or checkpoint file is empty. Give one, or leave it out."
        )
    if (weights := found_by_name(name)) is not None:
        return weights
    run = Run(runs / name if (runs / name / CHECKPOINTS).is_dir() else Path(name))
    if run.path.is_file():
        return run.path
    if (run.path / WEIGHTS).is_file():
        return run.path / WEIGHTS
    if run.path.is_dir():
        last = latest and run.last_checkpoint.is_file()
        return run.last_checkpoint if last else run.best_checkpoint()
    folders = sorted(runs.glob(f"*/{CHECKPOINTS}"), key=lambda path: -path.stat().st_mtime)
    known = [folder.parent.name for folder in folders]
    newest = ", ".join([*known[:5], "..."] if len(known) > 5 else known)
    there = f"Runs in {runs}, newest first: {newest}" if known else f"{runs} holds no runs yet."
    if close := get_close_matches(name, known, n=1):
        there = f"Did you mean {close[0]}? {there}"
    raise ValueError(f"{name} is neither a run nor a checkpoint file. {there}")


def home_of(name: str, checkpoint: Path, runs: Path) -> Path:
    """Return the folder that what is made of a model is put into.

    Args:
        name: What the model was found by.
        checkpoint: What was found.
        runs: The folder of all runs, for models whose own folder is not written to.
    """
    named = folder_by_name(name)
    return folder_of(checkpoint) if named is None else runs / named


def folder_of(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint's run, or its own where it lies elsewhere."""
    beside = checkpoint.parent
    return beside.parent if beside.name == CHECKPOINTS else beside


def shown(path: Path) -> Path:
    """Return a path as one would type it here: relative where it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def is_first_process() -> bool:
    """Return whether this process makes the run's folder, as far as is known before torch."""
    return RUN_ID not in os.environ and not any(int(os.environ.get(n, 0)) for n in RANKS)


def _joins(rank: int) -> bool:
    """Return whether another process has made the run's folder, or will."""
    return RUN_ID in os.environ or rank != 0


def _joined_id(run_id: str | None) -> str:
    joined = os.environ.get(RUN_ID, run_id)
    if joined is None:
        raise ValueError(
            "Several processes were started from outside, and each would make a run of its "
            "own. Give them one name: run_id=NAME."
        )
    return joined


def locked(folder: Path, name: str) -> FileLock | None:
    """Return the lock of a folder, which the operating system opens when this process ends; None
    where the file system has no locks.

    Args:
        folder: The folder.
        name: What it is, for whoever finds it locked.

    Raises:
        ValueError: Another process has it.
        OSError: It cannot be made.
    """
    path = folder / LOCK
    lock = FileLock(path, fallback_to_soft=False)  # a soft one would outlive a process that crashed
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        holder = path.read_text(errors="replace").strip() or "another process"
        raise ValueError(
            f"{name} is being trained by {holder}. Wait for it to end, or choose another name."
        ) from error
    except OSError as error:
        if error.errno in (ENOSYS, ENOLCK, EOPNOTSUPP):
            return None
        raise
    try:
        path.write_text(f"process {os.getpid()} on {HOST}\n")
    except OSError:
        lock.release()
        raise
    return lock


def _locked(run: Run) -> Run:
    """Return the run with its lock.

    Raises:
        ValueError: Another process has it, or the folder cannot be written.
    """
    try:
        return Run(run.path, locked(run.path, f"run_id={run.path.name}"))
    except OSError as error:
        close_run(run)
        raise _unwritable(run, error) from error


def _taken(run: Run) -> ValueError:
    return ValueError(
        f"run_id={run.path.name} exists already, in {run.path}. Choose another name, or "
        "continue that run: resume=auto."
    )


def _unwritable(run: Run, error: OSError) -> ValueError:
    return ValueError(
        f"The run's folder {run.path} cannot be written ({error.strerror}). "
        "Choose another place with paths.runs=DIR."
    )


def _is_continued(resume: str | None, run: Run) -> bool:
    """Return whether the run is to go on, in its own folder."""
    if resume is None or not run.path.is_dir():
        return False
    if resume == AUTO or not run.checkpoints_to_resume():
        return True  # also a run of its own that was stopped before its first checkpoint
    return run_resumed(resume, run.path.parent) == run.path.name
