"""Language modelling: the task, its trained models, and generation from them."""

from linear_transformers.tasks.language_modeling.task import LanguageModeling

__all__ = ["LanguageModeling"]
