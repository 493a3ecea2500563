"""Translation of one text into another: training, judging and decoding."""

from linear_transformers.tasks.translation.task import Translation

__all__ = ["Translation"]
