"""LightningModules: loss, metrics, optimizer. The architecture lives in `models`."""

from linear_transformers.tasks.image_generation import ImageGeneration

__all__ = ["ImageGeneration"]
