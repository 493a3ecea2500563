"""Taking a model of images along, for export.py."""

from dataclasses import dataclass

from linear_transformers.tasks.base import Trained
from linear_transformers.tasks.exporting import ExportSequences
from linear_transformers.tasks.image_generation.model import ImageModel


@dataclass(kw_only=True)
class ExportImages(ExportSequences):
    """Export a model of images, of which there is a page to draw on."""

    def page(self, trained: Trained) -> str:
        assert isinstance(trained, ImageModel)
        examples = None
        if self.examples:
            examples = trained.images("test", data_root=self.data_root)[: self.examples]
        return self.paged(trained, "It completes what you draw", examples)
