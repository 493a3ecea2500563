"""Data sets as LightningDataModules. Images are sequences of values: row by row, r g b r g b ..."""

from linear_transformers.data.arrays import ArrayImages
from linear_transformers.data.copies import Copies, CopyShape
from linear_transformers.data.digits import Digits
from linear_transformers.data.images import ImageDataModule, Images, ImageShape
from linear_transformers.data.sequences import SequenceDataModule, SequenceShape, Splits
from linear_transformers.data.torchvision_images import TorchvisionImages

__all__ = [
    "ArrayImages",
    "Copies",
    "CopyShape",
    "Digits",
    "ImageDataModule",
    "ImageShape",
    "Images",
    "SequenceDataModule",
    "SequenceShape",
    "Splits",
    "TorchvisionImages",
]
