"""The run's own record: one JSON object a line, appended and flushed, never rewritten."""

import json
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only


class MetricsFile(Logger):
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

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"time": round(time.time(), 3), "step": step, **metrics}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kw: Any) -> None:
        """config.yaml has them."""
