"""LightningModules: loss, metrics, optimizer. The architecture lives in `models`."""

from linear_transformers.tasks.base import SequenceTask, Task
from linear_transformers.tasks.copying import Copying
from linear_transformers.tasks.image_generation import ImageGeneration
from linear_transformers.tasks.speech_recognition import SpeechRecognition

__all__ = ["Copying", "ImageGeneration", "SequenceTask", "SpeechRecognition", "Task"]
