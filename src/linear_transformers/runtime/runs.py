"""A run's directory: runs/<run_id>/ with config.yaml, metrics.jsonl, checkpoints/, samples/."""

import itertools
import os
import re
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

# Lightning starts further processes with this process's environment: they join the same run.
RUN_ID = "LINEAR_TRANSFORMERS_RUN_ID"


@dataclass(frozen=True)
class Run:
    """Where the files of one run are."""

    path: Path

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def last_checkpoint(self) -> Path:
        return self.checkpoints / "last.ckpt"

    def best_checkpoint(self) -> Path:
        """The checkpoint to sample from: the best, else the last.

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


def claim_run(cfg: DictConfig, label: str) -> Run:
    """Make the run's directory, empty, so that no other job can take it.

    Args:
        cfg: The run's configuration; `run_id` names the directory, null makes a name of
            `label` and the time.
        label: What the run is, for its name.

    Raises:
        ValueError: `run_id` is not a plain name, or is taken by a run that this one does
            not continue; or the directory cannot be made.
    """
    runs = Path(cfg.paths.runs)
    if _joins():
        return Run(runs / _joined_id(cfg))
    run_id = cfg.run_id or f"{label}-{datetime.now():%Y%m%d-%H%M%S}"
    if not re.fullmatch(r"\w[\w.-]*", run_id):
        raise ValueError(
            f"run_id={run_id} is not a plain name. Use letters, digits, '.', '_' and '-'."
        )
    run = Run(runs / run_id)
    if _continues(cfg, run):
        return run
    try:
        return Run(claim_folder(run.path, numbered=cfg.run_id is None))
    except FileExistsError as error:
        raise ValueError(
            f"run_id={run_id} exists already, in {run.path}. Choose another name, or "
            f"continue that run with ckpt_path={run_id}."
        ) from error
    except OSError as error:
        raise _unwritable(run, error) from error


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


def open_run(run: Run, cfg: DictConfig) -> None:
    """Write the run's configuration; processes that are started from now on join the run.

    Raises:
        ValueError: The directory cannot be written.
    """
    if _joins():
        return
    try:
        for folder in (run.checkpoints, run.samples):
            folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=run.path):
            pass  # mkdir succeeds on some file systems that refuse the first file
        earlier = len(list(run.path.glob("config*.yaml")))
        # A continued run keeps what it was started with, and says what it goes on with.
        name = f"config-{earlier + 1}.yaml" if earlier else "config.yaml"
        OmegaConf.save(cfg, run.path / name)
    except OSError as error:
        raise _unwritable(run, error) from error
    os.environ[RUN_ID] = run.path.name


def close_run(run: Run) -> None:
    """Let the next job of this process make a run of its own; leave no empty directory."""
    if _rank() == 0:
        os.environ.pop(RUN_ID, None)
        if run.path.is_dir() and not any(run.path.iterdir()):
            run.path.rmdir()


def _joins() -> bool:
    """Whether another process has made the run's directory, or will."""
    return RUN_ID in os.environ or _rank() != 0


def _rank() -> int:
    return rank_zero_only.rank  # pyright: ignore[reportFunctionMemberAccess]


def _joined_id(cfg: DictConfig) -> str:
    run_id = os.environ.get(RUN_ID, cfg.run_id)
    if run_id is None:
        raise ValueError(
            "Several processes were started from outside, and each would make a run of its "
            "own. Give them one name: run_id=NAME."
        )
    return run_id


def _unwritable(run: Run, error: OSError) -> ValueError:
    return ValueError(
        f"The run's directory {run.path} cannot be written ({error.strerror}). "
        "Choose another place with paths.runs=DIR."
    )


def _continues(cfg: DictConfig, run: Run) -> bool:
    """Whether the checkpoint to continue from is this very run's."""
    return cfg.ckpt_path is not None and run.path.resolve() in (
        Path(cfg.ckpt_path).resolve(),
        *Path(cfg.ckpt_path).resolve().parents,
        (run.path.parent / cfg.ckpt_path).resolve(),
    )
