"""Data sets as LightningDataModules. Images are sequences of values: row by row, r g b r g b ..."""

from linear_transformers.data.arrays import ArrayImages
from linear_transformers.data.digits import Digits
from linear_transformers.data.images import ImageDataModule, Images, ImageShape, ImageSplits
from linear_transformers.data.torchvision_images import TorchvisionImages

__all__ = [
    "ArrayImages",
    "Digits",
    "ImageDataModule",
    "ImageShape",
    "ImageSplits",
    "Images",
    "TorchvisionImages",
]
