"""The interface of all trackers."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.loggers.logger import Logger

from linear_transformers.calls import call_with
from linear_transformers.files import replacing
from linear_transformers.tasks.base import Figure, Watcher


@dataclass(frozen=True)
class Description:
    """The description of a job, for any tracker.

    Attributes:
        folder: The job's own folder. A tracker puts its files there, in a folder of its own.
        runs: The folder of all runs, for files that they share.
        name: The name of the run.
        job_type: The program, as `train` or `sample`.
        group: The name of a sweep, or of a run, shared by what was sampled from it.
        tags: The user's tags.
        figures: The figures that runs are compared by.
        config: The full configuration as plain data, the choices that it was composed of, and the
            commit it ran at.
    """

    folder: Path
    runs: Path
    name: str
    job_type: str
    group: str
    tags: tuple[str, ...]
    figures: Sequence[Figure]
    config: dict[str, Any]


class Tracker(Logger, Watcher):
    """A Lightning logger that also takes pictures, recordings, tables and checkpoints.

    Built in every process of a run, but started and used in the first one only. A tracker need
    not override the methods for pictures and tables: the run's `samples/` and `metrics.jsonl`
    hold them in any case.
    """

    description: Description

    @abstractmethod
    def start(self) -> str:
        """Open or continue the tracker's run, and return one line on where to watch it.

        Raises:
            ValueError: The run cannot be opened, and the configuration requires it.
        """

    def log_checkpoints(self, kept: Mapping[str, Path]) -> None:
        """Upload the checkpoints that were kept, by name, if the configuration asks for it."""

    def finish(self, *, failed: bool) -> None:
        """Close the tracker's run, so that the next job of this process may open another."""


def trackers_of(trainer: Trainer) -> list[Tracker]:
    """Return the trackers among a trainer's loggers."""
    return [logger for logger in trainer.loggers if isinstance(logger, Tracker)]


def trackers_for(
    logger: Mapping[str, Callable[..., Tracker]], description: Description
) -> list[Tracker]:
    """Return the trackers of a job. Only the first process of a run starts them.

    Args:
        logger: The factories of the chosen trackers, by name.
        description: The description of the job.

    Raises:
        ValueError: A tracker refuses its options, or its package is not installed.
    """
    trackers = []
    for name, tracker in logger.items():
        try:
            trackers.append(tracker(description))
        except ModuleNotFoundError as error:
            raise ValueError(
                f"logger={name} needs a package that is not installed: {call_with(name)}"
            ) from error
    return trackers


@contextmanager
def started(trackers: Sequence[Tracker]) -> Iterator[list[str]]:
    """Start trackers, yield their lines, and finish them however the body ends."""
    with ExitStack() as stack:
        lines = []
        for tracker in trackers:
            lines.append(tracker.start())
            stack.push(lambda kind, *_, each=tracker: each.finish(failed=kind is not None))
        yield lines


class KeptId:
    """A tracker's id of a job, kept in the job's folder so that a resumed job reuses it."""

    def __init__(self, folder: Path, tracker: str):
        self.path = folder / "trackers.json"
        self.tracker = tracker

    def get(self) -> str | None:
        return self._all().get(self.tracker)

    def keep(self, value: str) -> None:
        kept = {**self._all(), self.tracker: value}
        with replacing(self.path) as partial:
            partial.write_text(json.dumps(kept) + "\n")

    def _all(self) -> dict[str, str]:
        if not self.path.is_file():
            return {}
        try:
            kept = json.loads(self.path.read_text())
            return {str(tracker): str(value) for tracker, value in kept.items()}
        except (ValueError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is damaged. Remove it: trackers then begin a new page for this run."
            ) from error
