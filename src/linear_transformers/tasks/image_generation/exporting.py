"""Taking a model of images along, for export.py."""

import io
from dataclasses import dataclass

import numpy as np

from linear_transformers.runs.exported import EXAMPLES
from linear_transformers.tasks.base import Trained
from linear_transformers.tasks.exporting import ExportSequences
from linear_transformers.tasks.image_generation.model import ImageModel


@dataclass(kw_only=True)
class ExportImages(ExportSequences):
    """Export a model of images, of which there is a page to draw on."""

    def extras(self, trained: Trained) -> dict[str, bytes]:
        if (images := self._images(trained)) is None:
            return {}
        file = io.BytesIO()
        np.save(file, images, allow_pickle=False)
        return {EXAMPLES: file.getvalue()}

    def next_words(self, trained: Trained) -> list[str]:
        # Images of one's own stay where they are: without examples there are none to complete.
        return ["mode=generate"] if "path" in trained.config["data"] and not self.examples else []

    def page(self, trained: Trained) -> str:
        return self.paged(trained, "It completes what you draw", self._images(trained))

    def _images(self, trained: Trained) -> np.ndarray | None:
        assert isinstance(trained, ImageModel)
        if not self.examples:
            return None
        found = trained.examples(data_root=self.data_root)
        if len(found) < self.examples:
            raise ValueError(
                f"examples={self.examples}, and there are {len(found)} test images. Ask for fewer."
            )
        return found[: self.examples]
