"""Data sets: sequences of values (images among them), speech, texts, and pairs of them."""

from linear_transformers.data.arrays import ArrayImages
from linear_transformers.data.base import DataSource, Shape
from linear_transformers.data.copies import Copies, CopyShape
from linear_transformers.data.digits import Digits
from linear_transformers.data.folder import FolderImages
from linear_transformers.data.images import Images, ImageShape, ImageSource
from linear_transformers.data.sequences import SequenceShape, SequenceSource, Splits
from linear_transformers.data.speech import (
    EspeakSpeech,
    LibriSpeech,
    ManifestSpeech,
    SpeechOcean,
    SpeechShape,
    SpeechSource,
    WallStreetJournal,
)
from linear_transformers.data.text import (
    Multi30k,
    PairFiles,
    PairShape,
    PairSource,
    PythonSources,
    TextFiles,
    TextShape,
    TextSource,
    Transductions,
)
from linear_transformers.data.torchvision_images import TorchvisionImages

__all__ = [
    "ArrayImages",
    "Copies",
    "CopyShape",
    "DataSource",
    "Digits",
    "EspeakSpeech",
    "FolderImages",
    "ImageShape",
    "ImageSource",
    "Images",
    "LibriSpeech",
    "ManifestSpeech",
    "Multi30k",
    "PairFiles",
    "PairShape",
    "PairSource",
    "PythonSources",
    "SequenceShape",
    "SequenceSource",
    "Shape",
    "SpeechOcean",
    "SpeechShape",
    "SpeechSource",
    "Splits",
    "TextFiles",
    "TextShape",
    "TextSource",
    "TorchvisionImages",
    "Transductions",
    "WallStreetJournal",
]
