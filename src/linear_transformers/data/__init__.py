"""Data sets as LightningDataModules: sequences of values (images among them), and speech."""

from linear_transformers.data.arrays import ArrayImages
from linear_transformers.data.base import DataModule, Shape
from linear_transformers.data.copies import Copies, CopyShape
from linear_transformers.data.digits import Digits
from linear_transformers.data.images import ImageDataModule, Images, ImageShape
from linear_transformers.data.sequences import SequenceDataModule, SequenceShape, Splits
from linear_transformers.data.speech import (
    EspeakSpeech,
    LibriSpeech,
    ManifestSpeech,
    SpeechDataModule,
    SpeechShape,
    WallStreetJournal,
)
from linear_transformers.data.torchvision_images import TorchvisionImages

__all__ = [
    "ArrayImages",
    "Copies",
    "CopyShape",
    "DataModule",
    "Digits",
    "EspeakSpeech",
    "ImageDataModule",
    "ImageShape",
    "Images",
    "LibriSpeech",
    "ManifestSpeech",
    "SequenceDataModule",
    "SequenceShape",
    "Shape",
    "SpeechDataModule",
    "SpeechShape",
    "Splits",
    "TorchvisionImages",
    "WallStreetJournal",
]
