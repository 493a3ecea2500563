"""phi: what stands in for the exponential. One map a file; each states equation and source."""

from linear_transformers.feature_maps.base import FeatureMap, FeatureMapFactory
from linear_transformers.feature_maps.elu import Elu
from linear_transformers.feature_maps.relu import Relu

__all__ = ["Elu", "FeatureMap", "FeatureMapFactory", "Relu"]
