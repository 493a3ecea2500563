"""The files in results/: figures and their provenance.

title, command, commit, clean, date, machine, versions    see linear_transformers.provenance
device, threads, seeds, seconds    the conditions of the measurement, and its duration
note       a remark by hand
summary    {caption, rows}: a short table that sums up the figures
rows       the figures
sources    the origin of rows that were taken over: training runs (`collect.source_of`), or an
           earlier measurement
"""

import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from linear_transformers.files import replacing
from linear_transformers.provenance import provenance

OWN = Path(__file__).parent.parent / "results"
RESULTS = Path(os.environ.get("RESULTS") or OWN)
# Times are comparable if these agree.
ALIKE = ("title", "machine", "versions", "device", "threads")
FIGURES = ("title", "note", "summary", "rows", "sources")
# The provenance that every figure needs, of a run and of a measurement.
RUN_NEEDS = ("command", "commit", "date", "processor", "memory_gb", "versions")
NEEDS = (*RUN_NEEDS, "threads", "seeds", "seconds")
Rows = Sequence[dict[str, Any]]


def content_of(name: str, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the content of a measurement's file; None where nothing was measured.

    Args:
        name: The name of the file, <name>.json.
        folder: Where it is; None is `RESULTS`.

    Raises:
        SystemExit: It is torn, or no JSON.
    """
    path = (folder or RESULTS) / f"{name}.json"
    try:
        return json.loads(path.read_text()) if path.is_file() else None
    except ValueError as error:
        told = f"error: {path} cannot be read ({error}). Restore it, or remove it to begin anew."
        raise SystemExit(told) from error


class Measurement:
    """A measurement, whose commit and clock are taken when it is constructed.

    Args:
        name: The name of the file, results/<name>.json.
        title: The heading in RESULTS.md.
        device: The torch device that is measured.
        seeds: The random seeds; for trained models, those of their training.
        tells: Whether to print how long it took the last time, here or in the project's file, and
            by which command if that was another.

    Raises:
        SystemExit: The file could not be written at the end.
    """

    def __init__(
        self, name: str, title: str, *, device: str, seeds: Iterable[int | None], tells: bool = True
    ):
        self.path = RESULTS / f"{name}.json"
        there = next(parent for parent in self.path.absolute().parents if parent.exists())
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            told = f"error: {self.path} cannot be written: {there}: {error.strerror}."
            raise SystemExit(f"{told} Give another folder, by RESULTS=FOLDER.") from error
        self.title = title
        self.started = time.monotonic()
        self.about = {
            **provenance(),
            "device": torch.device(device).type,
            "threads": torch.get_num_threads(),
            "seeds": [seed for seed in dict.fromkeys(seeds) if seed is not None],
        }
        before = content_of(name) or content_of(name, OWN)
        if tells and before and before["seconds"] >= 1:
            took = f"the last time this took {timedelta(seconds=round(before['seconds']))}"
            other = before["command"] != self.about["command"]
            print(f"{took}, by: {before['command']}" if other else took, flush=True)

    def earlier(self) -> dict[str, Any] | None:
        """Return the earlier content of the file, if the same was measured on a like machine."""
        found = content_of(self.path.stem) or {}
        about = {"title": self.title, **self.about}
        return found if all(found.get(key) == about[key] for key in ALIKE) else None

    def save(self, rows: Rows, *, seconds: float | None = None, **more: Any) -> Path:
        """Write the file, replacing what was measured before.

        Args:
            rows: The figures, one row per case.
            seconds: The duration; by default, since the measurement began.
            more: The `note`, `summary` and `sources`, see this module; empty ones are left out.
        """
        seconds = time.monotonic() - self.started if seconds is None else seconds
        more = {key: value for key, value in more.items() if value}
        assert more.keys() <= {*FIGURES}
        about = {"title": self.title, **self.about, "seconds": round(seconds, 1)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as partial:
            partial.write_text(to_json({**about, **more, "rows": rows}) + "\n")
        return self.path


def as_sources(measurement: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sources of a measurement's rows, for another one that takes some of them over."""
    about = {key: value for key, value in measurement.items() if key not in FIGURES}
    return [about, *measurement.get("sources", [])]


def starts(measurement: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the provenance of every start behind the rows: the measurement's, its sources'."""
    sources = measurement.get("sources", [])
    return [measurement, *(start for x in sources for start in x.get("starts") or [x])]


def lacking(measurement: dict[str, Any]) -> list[str]:
    """Return the names of what a measurement, or one of its sources, does not say."""
    own, *others = starts(measurement)
    return [name for name in NEEDS if not _says(own, name)] + [
        f"{name} of a run" for name in RUN_NEEDS if not all(_says(other, name) for other in others)
    ]


def _says(record: dict[str, Any], name: str) -> bool:
    return {**record, **record.get("machine", {})}.get(name) not in (None, [], "")


def to_json(value: Any) -> str:
    """Return indented JSON, with a list of plain values on one line."""

    def joined(plain: re.Match[str]) -> str:
        return f"[{' '.join(line.strip() for line in plain[1].splitlines())}]"

    # Line breaks in strings are escaped, so a match never begins or ends in a string.
    return re.sub(r"\[\n([^\[\]{}]*?)\n\s*\]", joined, json.dumps(value, indent=2))
