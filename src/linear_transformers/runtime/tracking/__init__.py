"""Where a run can be watched: Weights & Biases, TensorBoard, MLflow, CSV, and its own record."""

from linear_transformers.runtime.tracking.base import Description, Tracker, started
from linear_transformers.runtime.tracking.csv import CsvTracker
from linear_transformers.runtime.tracking.mlflow import MLflowTracker
from linear_transformers.runtime.tracking.record import Record
from linear_transformers.runtime.tracking.tensorboard import TensorBoardTracker
from linear_transformers.runtime.tracking.wandb import WandbTracker

__all__ = [
    "CsvTracker",
    "Description",
    "MLflowTracker",
    "Record",
    "TensorBoardTracker",
    "Tracker",
    "WandbTracker",
    "started",
]
