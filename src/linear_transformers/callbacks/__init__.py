"""What happens around training: checkpoints, rates, the bar, pictures, exact continuation."""

from linear_transformers.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from linear_transformers.callbacks.early_stopping import StopEarly
from linear_transformers.callbacks.performance import Performance
from linear_transformers.callbacks.progress import Progress
from linear_transformers.callbacks.redraw import RedrawFeatures
from linear_transformers.callbacks.resuming import EpochPlace, Epochs, StepSeed
from linear_transformers.callbacks.samples import Samples
from linear_transformers.callbacks.stopping import StopAtSignal

__all__ = [
    "BestCheckpoint",
    "EpochPlace",
    "Epochs",
    "LastCheckpoint",
    "Performance",
    "Progress",
    "RedrawFeatures",
    "Samples",
    "StepSeed",
    "StopAtSignal",
    "StopEarly",
]
