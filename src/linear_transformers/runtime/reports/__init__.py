"""What a finished run shows of its model, by task."""

from collections.abc import Callable

from lightning import Trainer

from linear_transformers.data import SequenceDataModule
from linear_transformers.runtime.reports.copies import report_copies
from linear_transformers.runtime.reports.images import report_images
from linear_transformers.runtime.runs import Run
from linear_transformers.tasks import Copying, ImageGeneration, SequenceTask

# Prints and records; gives the lines that say where to look.
Report = Callable[[Run, SequenceDataModule, SequenceTask, Trainer], list[str]]

REPORTS: dict[type[SequenceTask], Report] = {
    ImageGeneration: report_images,
    Copying: report_copies,
}

__all__ = ["REPORTS", "Report"]
