"""Taking a model of texts along, for export.py."""

from dataclasses import dataclass
from typing import Any

from linear_transformers.data.text import END
from linear_transformers.tasks.base import Trained
from linear_transformers.tasks.exporting import ExportSequences


@dataclass(kw_only=True)
class ExportTexts(ExportSequences):
    """Export a model of texts."""

    def about(self, trained: Trained) -> dict[str, Any]:
        pieces = [piece.hex() for piece in trained.task.shape.tokenizer.pieces]
        return {**super().about(trained), "end": END, "bytes_of_tokens": pieces}

    def page(self, trained: Trained) -> str:
        self.extras(trained)  # refuses images
        return self.paged(trained, "It goes on with what you write")
