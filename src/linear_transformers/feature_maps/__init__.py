"""Feature maps: phi, in place of the exponential. One a file, with its equation and source."""

from linear_transformers.feature_maps.base import FeatureMap, FeatureMapFactory, ProductMap
from linear_transformers.feature_maps.dpfp import Dpfp
from linear_transformers.feature_maps.elu import Elu
from linear_transformers.feature_maps.favor import Favor
from linear_transformers.feature_maps.fourier import Fourier
from linear_transformers.feature_maps.hedgehog import Hedgehog
from linear_transformers.feature_maps.polynomial import Polynomial
from linear_transformers.feature_maps.random_features import RandomFeatures
from linear_transformers.feature_maps.relu import Relu
from linear_transformers.feature_maps.taylor import Taylor

__all__ = [
    "Dpfp",
    "Elu",
    "Favor",
    "FeatureMap",
    "FeatureMapFactory",
    "Fourier",
    "Hedgehog",
    "Polynomial",
    "ProductMap",
    "RandomFeatures",
    "Relu",
    "Taylor",
]
