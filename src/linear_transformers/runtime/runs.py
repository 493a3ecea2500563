"""A run's directory: runs/<run_id>/ with config.yaml, metrics.jsonl, checkpoints/, samples/."""

import os
import re
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

# Lightning starts further processes with this process's environment: they join the same run.
RUN_ID = "LINEAR_TRANSFORMERS_RUN_ID"


@dataclass(frozen=True)
class Run:
    """Where the files of one run are."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

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


def open_run(cfg: DictConfig, label: str) -> Run:
    """Make the run's directory and write its configuration.

    Args:
        cfg: The run's configuration; `run_id` names the directory, null makes a name of
            `label` and the time.
        label: What the run is, for its name.

    Raises:
        ValueError: `run_id` is not a plain name, is taken by a run that this one does not
            continue, or the directory cannot be written.
    """
    joined = os.environ.get(RUN_ID)
    if joined is not None:
        return Run(Path(cfg.paths.runs) / joined)
    run_id = cfg.run_id or f"{label}-{datetime.now():%Y%m%d-%H%M%S}"
    if not re.fullmatch(r"\w[\w.-]*", run_id):
        raise ValueError(
            f"run_id={run_id} is not a plain name. Use letters, digits, '.', '_' and '-'."
        )
    run = Run(Path(cfg.paths.runs) / run_id)
    if not _continues(cfg, run):
        run = _fresh(run, named=cfg.run_id is not None)
    try:
        for folder in (run.checkpoints, run.samples):
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=run.path):
            pass  # mkdir succeeds on some file systems that refuse the first file
        if not run.config.exists():
            OmegaConf.save(cfg, run.config)
    except OSError as error:
        raise ValueError(
            f"The run's directory {run.path} cannot be written ({error.strerror}). "
            "Choose another place with paths.runs=DIR."
        ) from error
    os.environ[RUN_ID] = run.path.name
    return run


def close_run() -> None:
    """Let the next job of this process make a run of its own."""
    os.environ.pop(RUN_ID, None)


def _continues(cfg: DictConfig, run: Run) -> bool:
    """Whether the checkpoint to continue from is this very run's."""
    return cfg.ckpt_path is not None and run.path.resolve() in (
        Path(cfg.ckpt_path).resolve(),
        *Path(cfg.ckpt_path).resolve().parents,
        (run.path.parent / cfg.ckpt_path).resolve(),
    )


def _fresh(run: Run, *, named: bool) -> Run:
    """A directory that does not exist yet: under the given name, or one close to a made name."""
    if not run.path.exists():
        return run
    if named:
        raise ValueError(
            f"run_id={run.path.name} exists already, in {run.path}. Choose another name, or "
            f"continue that run with ckpt_path={run.path.name}."
        )
    count = 2
    while (path := run.path.with_name(f"{run.path.name}-{count}")).exists():
        count += 1
    return Run(path)
