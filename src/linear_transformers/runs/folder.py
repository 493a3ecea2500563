"""A run's directory: runs/<run_id>/ with config.yaml, metrics.jsonl, checkpoints/, samples/."""

import itertools
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from linear_transformers.files import remove_leftovers, replacing

# Lightning starts further processes with this process's environment: they join the same run.
RUN_ID = "LINEAR_TRANSFORMERS_RUN_ID"
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # where launchers say which process this is
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Run:
    """Where the files of one run are."""

    path: Path

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

    def best_checkpoint(self) -> Path:
        """Return the checkpoint to sample from: the best, else the last.

        Raises:
            ValueError: The run has none.
        """
        for name in ("best.ckpt", "last.ckpt"):
            if (self.checkpoints / name).is_file():
                return self.checkpoints / name
        raise ValueError(
            f"{self.path} has no checkpoint: {self.checkpoints} holds neither best.ckpt nor "
            "last.ckpt. It was stopped before its first validation; train again."
        )


def claim_run(
    runs: Path, *, run_id: str | None, label: str, continues: str | None = None, rank: int = 0
) -> Run:
    """Make the run's folder, empty, so that no other job can take it.

    Args:
        runs: The folder of all runs.
        run_id: The name of the run's folder; None makes one of `label` and the time.
        label: What the run is, for its name.
        continues: The run or checkpoint that it starts from.
        rank: This process's number; the first one makes the folder.

    Raises:
        ValueError: `run_id` is not a plain name, or is taken by a run that this one does
            not continue; or the folder cannot be made.
    """
    if _joins(rank):
        return Run(runs / _joined_id(run_id))
    name = run_id or f"{label}-{datetime.now():%Y%m%d-%H%M%S}"
    if run_id is not None:
        check_name(runs, run_id, continues=continues)
    run = Run(runs / name)
    if continues is not None and _is_within(continues, run):
        return run
    try:
        return Run(claim_folder(run.path, numbered=run_id is None))
    except FileExistsError as error:
        raise _taken(run) from error
    except OSError as error:
        raise _unwritable(run, error) from error


def check_name(runs: Path, name: str, *, continues: str | None) -> None:
    """Refuse a run's name that cannot be had.

    Args:
        runs: See `claim_run`.
        name: The name.
        continues: See `claim_run`.

    Raises:
        ValueError: See `claim_run`.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(
            f"run_id={name} is not a plain name. Use letters, digits, '.', '_' and '-'."
        )
    run = Run(runs / name)
    if run.path.exists() and not (continues is not None and _is_within(continues, run)):
        raise _taken(run)


def claim_folder(path: Path, *, numbered: bool) -> Path:
    """Make a new folder: `path`, or where that is taken and `numbered`, path-2, path-3, ...

    Raises:
        FileExistsError: The path is taken, and not to be numbered.
        OSError: It cannot be made.
    """
    claimed = path
    for count in itertools.count(2):
        try:
            claimed.mkdir(parents=True)
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
            remove_leftovers(folder)  # of a run that is continued because it was killed
        with tempfile.TemporaryFile(dir=run.path):
            pass  # mkdir succeeds on some file systems that refuse the first file
        earlier = len(list(run.path.glob("config*.yaml")))
        # A continued run keeps what it was started with, and says what it goes on with.
        name = f"config-{earlier + 1}.yaml" if earlier else "config.yaml"
        with replacing(run.path / name) as partial:
            partial.write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise _unwritable(run, error) from error
    os.environ[RUN_ID] = run.path.name


def close_run(run: Run, *, rank: int = 0) -> None:
    """Let the next job of this process make a run of its own; leave no empty folder."""
    if rank == 0:
        os.environ.pop(RUN_ID, None)
        if run.path.is_dir() and not any(run.path.iterdir()):
            run.path.rmdir()


def find_checkpoint(name: str, runs: Path) -> Path:
    """Return the file that a run's name, a run's folder or a path means.

    Raises:
        ValueError: None of these is there.
    """
    for candidate in (Path(name), runs / name):
        if candidate.is_file():
            return candidate
        if candidate.is_dir():
            return Run(candidate).best_checkpoint()
    known = sorted(path.parent.name for path in runs.glob(f"*/{CHECKPOINTS}"))
    there = f"Runs in {runs}: {', '.join(known[-5:])}." if known else f"{runs} holds no runs yet."
    raise ValueError(f"{name} is neither a run nor a checkpoint file. {there}")


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


def _taken(run: Run) -> ValueError:
    return ValueError(
        f"run_id={run.path.name} exists already, in {run.path}. Choose another name, or "
        f"continue that run with ckpt_path={run.path.name}."
    )


def _unwritable(run: Run, error: OSError) -> ValueError:
    return ValueError(
        f"The run's folder {run.path} cannot be written ({error.strerror}). "
        "Choose another place with paths.runs=DIR."
    )


def _is_within(checkpoint: str, run: Run) -> bool:
    """Return whether a checkpoint to continue from is this very run's."""
    path = Path(checkpoint).resolve()
    return run.path.resolve() in (path, *path.parents, (run.path.parent / checkpoint).resolve())
