"""Speech recognition by CTC: what is trained, reported, transcribed and heard as it comes."""

from linear_transformers.tasks.speech_recognition.task import SpeechRecognition

__all__ = ["SpeechRecognition"]
