"""TensorBoard: event files in the run's folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image

from linear_transformers.calls import call_of_tool
from linear_transformers.pictures.tables import markdown
from linear_transformers.runs.folder import shown
from linear_transformers.tasks.base import Row
from linear_transformers.tracking.base import Description, Tracker


class TensorBoardTracker(TensorBoardLogger, Tracker):  # pyright: ignore
    """Event files in runs/<run_id>/tensorboard/; a continued run adds one."""

    def __init__(self, description: Description):
        super().__init__(
            str(description.folder), name="tensorboard", version="", default_hp_metric=False
        )
        self.description = description

    def start(self) -> str:
        self.log_hyperparams(self.description.config)
        words = f"tensorboard --logdir {shown(self.description.runs)}"
        return f"watch    {call_of_tool(words, extra='tensorboard')}"

    def log_summary(self, figures: dict[str, Any], step: int) -> None:
        rows = [{"figure": name, "value": value} for name, value in figures.items()]
        self.log_table("summary", rows, step)

    def log_picture(self, name: str, path: Path, step: int) -> None:
        if path.suffix == ".png":  # TensorBoard takes no GIF
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            self.experiment.add_image(name, pixels, step, dataformats="HWC")

    def log_audio(self, name: str, path: Path, caption: str, step: int) -> None:
        samples, rate = soundfile.read(path, dtype="float32")
        self.experiment.add_audio(name, samples, step, sample_rate=rate)

    def log_table(self, name: str, rows: Sequence[Row], step: int) -> None:
        self.experiment.add_text(name, markdown(rows), step)

    def finish(self, *, failed: bool) -> None:
        self.experiment.close()
