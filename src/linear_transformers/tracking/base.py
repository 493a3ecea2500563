"""What every tracker can be told."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.pytorch.loggers.logger import Logger

from linear_transformers.files import replacing
from linear_transformers.tasks.base import Figure, Row


@dataclass(frozen=True)
class Description:
    """What a tracker is to show, whichever it is.

    Attributes:
        folder: The job's own folder. A tracker puts its files there, in a folder of its own.
        runs: The folder of all runs, for what they share.
        name: Of the run.
        job_type: `train` or `sample`.
        group: What belongs together: a sweep, or a run and what was sampled from it.
        tags: The user's words.
        figures: What runs are compared by.
        config: The full configuration as plain data, and the commit it ran at.
    """

    folder: Path
    runs: Path
    name: str
    job_type: str
    group: str
    tags: tuple[str, ...]
    figures: Sequence[Figure]
    config: dict[str, Any]


class Tracker(Logger):
    """One of Lightning's loggers that can also be told of pictures, tables and checkpoints.

    Built in every process of a run; started, and told anything, in the first one only. A tracker
    that has no place for pictures or tables leaves those methods as they are: the run's
    `samples/` and `metrics.jsonl` hold them in any case.
    """

    description: Description

    @abstractmethod
    def start(self) -> str:
        """Open the run there, or the one it continues. Returns one line: where to look.

        Raises:
            ValueError: It cannot be opened, and the configuration insists on it.
        """

    def log_picture(self, name: str, path: Path, step: int) -> None:
        """Show a PNG or GIF file."""

    def log_audio(self, name: str, path: Path, caption: str, step: int) -> None:
        """Let a recording be heard."""

    def log_table(self, name: str, rows: Sequence[Row], step: int) -> None:
        """Show rows of one shape."""

    def log_checkpoints(self, best: Path, last: Path) -> None:
        """Keep the checkpoints, where the configuration asks for it."""

    def finish(self, *, failed: bool) -> None:
        """Close the run there; the next job of this process may open one of its own."""


def trackers_of(trainer: Trainer) -> list[Tracker]:
    """Return a trainer's loggers, which are all ours."""
    return [logger for logger in trainer.loggers if isinstance(logger, Tracker)]


def trackers_for(
    logger: Mapping[str, Callable[..., Tracker]], description: Description
) -> list[Tracker]:
    """Return where a job can be watched. Only the first process of a run starts them.

    Args:
        logger: The trackers that the configuration chose, by name.
        description: What they are to show.

    Raises:
        ValueError: A tracker refuses its options, or its package is not installed.
    """
    trackers = []
    for name, tracker in logger.items():
        try:
            trackers.append(tracker(description))
        except ModuleNotFoundError as error:
            raise ValueError(
                f"logger={name} needs a package that is not installed: "
                f"pip install 'linear-transformers[{name}]'."
            ) from error
    return trackers


@contextmanager
def started(trackers: Sequence[Tracker]) -> Iterator[list[str]]:
    """Trackers for as long as the body runs; finished however it ends. Gives their lines."""
    open_now: list[Tracker] = []
    failed = True
    try:
        lines = []
        for tracker in trackers:
            lines.append(tracker.start())
            open_now.append(tracker)
        yield lines
        failed = False
    finally:
        for tracker in open_now:
            tracker.finish(failed=failed)


class KeptId:
    """The id that a tracker knows a job by: made once, kept in the job's folder."""

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
        return json.loads(self.path.read_text()) if self.path.is_file() else {}
