"""The run's own record: one JSON object a line, appended and flushed, never rewritten."""

import json
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from linear_transformers.tasks.base import Figure, Row
from linear_transformers.tracking.base import Tracker

FIGURES = "figures"  # the key of the first row: a run's figures, and whether min or max is best


class Record(Tracker):
    """Appends {"time", "step", metric: value, ...} to a file; a killed run keeps every row."""

    def __init__(self, path: Path):
        super().__init__()
        self.path = path

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return self.path.parent.name

    def start(self) -> str:
        return f"record   {self.path}"

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        row = {"time": round(time.time(), 3), "step": step, **metrics}
        with self.path.open("ab") as file:
            file.write(json.dumps(row).encode() + b"\n")

    def begin(self, figures: Sequence[Figure]) -> None:
        """Write the figures that the run is judged by."""
        self.log_metrics({FIGURES: {figure.name: figure.best for figure in figures}}, step=0)

    def log_table(self, name: str, rows: Sequence[Row], step: int) -> None:
        self.log_metrics({name: list(rows)}, step)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kw: Any) -> None:
        """Do nothing: config.yaml has them."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's record; a killed process may have left the last one torn."""
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def summary(path: Path) -> dict[str, Any]:
    """Return the figures that summarise a run, as far as its record has them."""
    rows = rows_of(path)

    def every(name: str) -> list[Any]:
        return [row[name] for row in rows if name in row]

    found: dict[str, Any] = {}
    for name, best in next(iter(every(FIGURES)), {}).items():
        if values := every(f"val/{name}"):
            found[f"val_{name}"] = round(min(values) if best == "min" else max(values), 4)
        if values := every(f"test/{name}"):
            found[f"test_{name}"] = round(values[-1], 4)
    if rates := every("perf/tokens_per_second"):
        found["tokens_per_second"] = round(median(rates))
    if seconds := every("perf/seconds_per_epoch"):
        found["seconds_per_epoch"] = round(median(seconds), 2)
    for table in every("speed/sampling"):
        recurrent = table[0]
        found |= {name: recurrent[name] for name in recurrent if name.endswith("_per_second")}
    for table in every("state/bytes"):
        found |= {f"state_bytes_at_{row['length']}": row["bytes"] for row in table}
    if rows:
        found["steps"] = max(row["step"] or 0 for row in rows)
        found["minutes"] = round((rows[-1]["time"] - rows[0]["time"]) / 60, 1)
    return found
