"""What a finished run shows of its model, by task."""

from collections.abc import Callable

from lightning import Trainer

from linear_transformers.data import DataModule
from linear_transformers.runtime.reports.copies import report_copies
from linear_transformers.runtime.reports.images import report_images
from linear_transformers.runtime.reports.speech import report_speech
from linear_transformers.runtime.runs import Run
from linear_transformers.tasks import Copying, ImageGeneration, SpeechRecognition, Task

# Prints and records; gives the lines that say where to look.
Report = Callable[[Run, DataModule, Task, Trainer], list[str]]

REPORTS: dict[type[Task], Report] = {
    ImageGeneration: report_images,
    Copying: report_copies,
    SpeechRecognition: report_speech,
}

__all__ = ["REPORTS", "Report"]
