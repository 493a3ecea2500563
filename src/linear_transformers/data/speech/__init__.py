"""Speech corpora: recordings and transcripts, as batches of log-mel features and labels."""

from linear_transformers.data.speech.audio import Waveform, read_audio, recordings_in
from linear_transformers.data.speech.base import SpeechSource
from linear_transformers.data.speech.espeak import EspeakSpeech
from linear_transformers.data.speech.features import log_mel
from linear_transformers.data.speech.labels import SpeechShape
from linear_transformers.data.speech.librispeech import LibriSpeech
from linear_transformers.data.speech.manifests import ManifestSpeech
from linear_transformers.data.speech.speechocean import SpeechOcean
from linear_transformers.data.speech.wsj import WallStreetJournal

__all__ = [
    "EspeakSpeech",
    "LibriSpeech",
    "ManifestSpeech",
    "SpeechOcean",
    "SpeechShape",
    "SpeechSource",
    "WallStreetJournal",
    "Waveform",
    "log_mel",
    "read_audio",
    "recordings_in",
]
