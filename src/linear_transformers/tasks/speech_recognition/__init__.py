"""Speech recognition by CTC: training, reports, transcription and streaming."""

from linear_transformers.tasks.speech_recognition.task import SpeechRecognition

__all__ = ["SpeechRecognition"]
