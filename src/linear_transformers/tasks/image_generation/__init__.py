"""Images, value by value: what is trained, reported and sampled."""

from linear_transformers.tasks.image_generation.task import ImageGeneration

__all__ = ["ImageGeneration"]
