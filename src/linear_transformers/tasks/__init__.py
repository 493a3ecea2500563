"""LightningModules: loss, metrics, optimizer. The architecture lives in `models`."""

from linear_transformers.tasks.base import SequenceTask
from linear_transformers.tasks.copying import Copying
from linear_transformers.tasks.image_generation import ImageGeneration

__all__ = ["Copying", "ImageGeneration", "SequenceTask"]
