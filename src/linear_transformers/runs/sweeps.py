"""The results of a multirun's jobs: one table, as Markdown, as JSON and in the terminal."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from linear_transformers.files import replacing
from linear_transformers.pictures.tables import markdown
from linear_transformers.runs.folder import shown


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

    Attributes:
        objective: The number that Hydra's sweepers minimise.
        figures: The figures that the table shows.
    """

    objective: float | None
    figures: dict[str, Any] = field(default_factory=dict)


class Sweep:
    """The jobs of one multirun so far. Its files are rewritten after each job."""

    def __init__(self, folder: Path, call: str):
        self.folder = folder
        self.call = call
        self.jobs: list[dict[str, Any]] = []

    def add(self, overrides: Sequence[str], outcome: Outcome | None, message: str) -> None:
        """Add one job.

        Args:
            overrides: The job's part of the command line.
            outcome: The result; None if the job failed.
            message: The reason of the failure.
        """
        job = {
            "job": len(self.jobs),
            "overrides": list(overrides),
            "status": "failed" if outcome is None else "done",
            "message": message if outcome is None else "",
            "figures": {} if outcome is None else outcome.figures,
        }
        self.jobs.append(job)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ("results.json", json.dumps(self.jobs, indent=2)), ("results.md", markdown(self.rows()))
        ):  # fmt: skip
            with replacing(self.folder / name) as partial:
                partial.write_text(text + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each job: its number, its swept choices, its figures, its status."""
        return [
            {"job": job["job"], **row, "status": job["status"]}
            for job, row in zip(self.jobs, table_of(self.jobs), strict=True)
        ]

    def report(self) -> None:
        """Print the table, and the commands that rerun failed jobs."""
        rows = self.rows()
        table = Table(title=f"{len(rows)} jobs", title_justify="left", box=None, pad_edge=False)
        for name in rows[0]:
            numbers = all(isinstance(row[name], int | float | None) for row in rows)
            table.add_column(name.replace("_", " "), justify="right" if numbers else "left")
        for row in rows:
            table.add_row(*("" if value is None else str(value) for value in row.values()))
        print()
        # Wide without a terminal: a log can be scrolled, but a truncated figure cannot be read.
        console = Console(highlight=False)
        wide = console if console.is_terminal else Console(highlight=False, width=200)
        wide.print(table)
        print(f"\ntable    {shown(self.folder)}/results.md, results.json")
        for job in self.jobs:
            if job["status"] == "failed":
                print(f"job {job['job']} failed: {job['message']}", file=sys.stderr)
                again = shlex.join(job["overrides"])
                print(f"again    {self.call} {again}", file=sys.stderr)


def table_of(jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the swept choices and the figures of each job in a `results.json`."""
    chosen = [_choices(job["overrides"]) for job in jobs]
    keys = dict.fromkeys(key for choices in chosen for key in choices)
    swept = [key for key in keys if len({choices.get(key) for choices in chosen}) > 1]
    figures = dict.fromkeys(name for job in jobs for name in job["figures"])
    return [
        {
            **{key: choices.get(key) for key in swept},
            **{name: job["figures"].get(name) for name in figures},
        }
        for job, choices in zip(jobs, chosen, strict=True)
    ]


def _choices(overrides: Sequence[str]) -> dict[str, str]:
    return dict(override.split("=", 1) for override in overrides if "=" in override)
