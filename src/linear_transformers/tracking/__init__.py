"""Trackers of a run: Weights & Biases, TensorBoard, MLflow, and its own record."""

from linear_transformers.tracking.base import (
    Description,
    Tracker,
    started,
    trackers_for,
    trackers_of,
)
from linear_transformers.tracking.mlflow import MLflowTracker
from linear_transformers.tracking.record import Record
from linear_transformers.tracking.tensorboard import TensorBoardTracker
from linear_transformers.tracking.wandb import WandbTracker

__all__ = [
    "Description",
    "MLflowTracker",
    "Record",
    "TensorBoardTracker",
    "Tracker",
    "WandbTracker",
    "started",
    "trackers_for",
    "trackers_of",
]
