"""Tasks: what models are trained for, and what is done with them. `base` is the plug."""

from linear_transformers.tasks.base import Task
from linear_transformers.tasks.copying import Copying
from linear_transformers.tasks.image_generation import ImageGeneration
from linear_transformers.tasks.language_modeling import LanguageModeling
from linear_transformers.tasks.speech_recognition import SpeechRecognition
from linear_transformers.tasks.translation import Translation

__all__ = [
    "Copying",
    "ImageGeneration",
    "LanguageModeling",
    "SpeechRecognition",
    "Task",
    "Translation",
]
