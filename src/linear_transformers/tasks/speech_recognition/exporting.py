"""Taking a speech encoder along, for export.py."""

from dataclasses import dataclass
from typing import Any

from linear_transformers.export.steps import SpeechStep, Step
from linear_transformers.tasks.base import Trained
from linear_transformers.tasks.exporting import Export


@dataclass(kw_only=True)
class ExportSpeech(Export):
    """Export a speech encoder: as ONNX, if it is causal."""

    def step(self, trained: Trained) -> Step:
        return SpeechStep(trained.task.model, self.capacity)

    def about(self, trained: Trained) -> dict[str, Any]:
        shape, encoder = trained.task.shape, trained.task.model
        return {
            "labels": [None, *shape.labels],  # the blank is label 0
            "sample_rate": shape.sample_rate,
            "num_mels": shape.num_mels,
            "frames_a_step": encoder.subsampling,
            "lookahead": 0 if encoder.lookahead is None else encoder.lookahead.right,
        }
