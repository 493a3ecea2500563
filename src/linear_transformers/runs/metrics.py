"""The record of a run, metrics.jsonl: rows of {"time", "step", metric: value, ...}, in order."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

TESTED_STEP = "tested_step"  # the key of a row beside a test: the step of what was tested
FIGURES = "figures"  # the key of each start's first row: the figures, and whether least is best


def read_metrics(path: Path) -> list[dict[str, Any]]:
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
    rows = read_metrics(path)

    def every(name: str) -> list[Any]:
        return [row[name] for row in rows if name in row]

    found: dict[str, Any] = {}
    for name, best in (every(FIGURES) or [{}])[-1].items():
        if values := every(f"val/{name}"):
            found[f"val_{name}"] = round(min(values) if best == "min" else max(values), 4)
        if values := every(f"test/{name}"):
            found[f"test_{name}"] = round(values[-1], 4)
    if rates := every("perf/tokens_per_second"):
        found["tokens_per_second"] = round(median(rates))
    if epochs := every("perf/seconds_per_epoch"):
        found["seconds_per_epoch"] = round(median(epochs), 2)
    for table in every("speed/sampling"):
        recurrent = table[0]
        found |= {name: recurrent[name] for name in recurrent if name.endswith("_per_second")}
    for table in every("state/bytes"):
        found |= {f"state_bytes_at_{row['length']}": row["bytes"] for row in table}
    if rows:
        found["steps"] = max(map(_steps, rows))
        found["minutes"] = round(seconds(rows) / 60, 1)
    return found


def seconds(rows: Sequence[dict[str, Any]]) -> float:
    """Return how long a run took by its record; until a start, which figures begin, it waited."""
    return sum(b["time"] - a["time"] for a, b in pairwise(rows) if FIGURES not in b)


def _steps(row: dict[str, Any]) -> int:
    """Return the number of steps that were trained before a row was written. Lightning counts from
    0, in rows of training and of validations, and those of tests have the number."""
    counted = ("train/", "val/", "perf/")
    return (row["step"] or 0) + any(name.startswith(counted) for name in row)
