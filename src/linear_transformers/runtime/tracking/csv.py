"""A CSV file, one for each time the run was started."""

from pathlib import Path

from lightning.pytorch.loggers import CSVLogger

from linear_transformers.runtime.project import shown
from linear_transformers.runtime.tracking.base import Description, Tracker


class CsvTracker(CSVLogger, Tracker):  # pyright: ignore
    """runs/<run_id>/csv/version_0/metrics.csv; a continued run writes version_1, and so on."""

    def __init__(self, description: Description):
        super().__init__(save_dir=description.folder, name="csv")
        self.description = description

    def start(self) -> str:
        self.log_hyperparams(self.description.config)
        return f"watch    {shown(Path(self.log_dir))}/metrics.csv"

    def finish(self, *, failed: bool) -> None:
        self.save()
