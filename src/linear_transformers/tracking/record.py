"""The run's own record: one JSON object a line, appended and flushed, never rewritten."""

import json
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from linear_transformers.runs.metrics import FIGURES
from linear_transformers.tasks.base import Figure, Row
from linear_transformers.tracking.base import Tracker


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
