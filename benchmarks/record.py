"""The files in results/: figures, and what they depend on.

title, command, commit, clean, date, machine, versions    see linear_transformers.provenance
device, threads, seeds, seconds    what was measured, with what, and how long that took
note       a person's words
summary    {caption, rows}: a short table of what the figures come to
rows       the figures
sources    what rows were taken over from: runs that trained (`collect.source_of`), or an
           earlier measurement
"""

import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from linear_transformers.files import replacing
from linear_transformers.provenance import provenance

RESULTS = Path(os.environ.get("RESULTS") or Path(__file__).parent.parent / "results")
ALIKE = ("machine", "versions", "device", "threads")  # times can be compared where these agree
FIGURES = ("title", "note", "summary", "rows", "sources")
# What a figure cannot be trusted without; of a run, and of a measurement.
RUN_NEEDS = ("command", "commit", "date", "processor", "memory_gb", "versions")
NEEDS = (*RUN_NEEDS, "threads", "seeds", "seconds")
Rows = Sequence[dict[str, Any]]


class Measurement:
    """A measurement from its beginning on, when its commit and its clock are taken.

    Args:
        name: results/<name>.json is written.
        title: The heading in RESULTS.md.
        device: The torch device that is measured.
        seeds: The seeds of what is random in it; of trained models, those of their training.
    """

    def __init__(self, name: str, title: str, *, device: str, seeds: Iterable[int | None]):
        self.path = RESULTS / f"{name}.json"
        self.title = title
        self.started = time.monotonic()
        self.about = {
            **provenance(),
            "device": torch.device(device).type,
            "threads": torch.get_num_threads(),
            "seeds": [seed for seed in dict.fromkeys(seeds) if seed is not None],
        }

    def earlier(self) -> dict[str, Any] | None:
        """Return what the file holds so far, if that was measured on a machine like this one."""
        found = json.loads(self.path.read_text()) if self.path.is_file() else {}
        return found if all(found.get(key) == self.about[key] for key in ALIKE) else None

    def save(self, rows: Rows, *, seconds: float | None = None, **more: Any) -> Path:
        """Write the file, replacing what was measured before.

        Args:
            rows: The figures, a row for each thing that was measured.
            seconds: How long it took; by default, since the measurement began.
            more: `note`, `summary` and `sources`, see this module; those that are empty are
                left out.
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
    """Return what a measurement's rows came from, for another one that takes some of them over."""
    about = {key: value for key, value in measurement.items() if key not in FIGURES}
    return [about, *measurement.get("sources", [])]


def starts(measurement: dict[str, Any]) -> list[dict[str, Any]]:
    """Return everything that was started for the rows: the measurement, then its sources."""
    sources = measurement.get("sources", [])
    return [measurement, *(start for x in sources for start in x.get("starts") or [x])]


def lacking(measurement: dict[str, Any]) -> list[str]:
    """Name what a measurement does not say, or what one of its sources does not."""
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

    # A line break in a string is escaped: what is matched stands between strings.
    return re.sub(r"\[\n([^\[\]{}]*?)\n\s*\]", joined, json.dumps(value, indent=2))
