"""Checkpoints that are whole or absent, say what made them, and load as data only."""

import hashlib
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.io import TorchCheckpointIO
from omegaconf import DictConfig, OmegaConf

from linear_transformers.data import ImageShape


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes beside the target and renames, so that the previous checkpoint always loads."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        path = Path(path)
        partial = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            partial.unlink(missing_ok=True)
            raise ValueError(
                f"The checkpoint {path} could not be written ({error}). An earlier one, if "
                "there is one, is as it was. Make room, or choose another paths.runs=DIR."
            ) from error

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return load_checkpoint(Path(path), map_location=map_location)


class ConfigInCheckpoint(Callback):
    """Puts the resolved configuration and the images' shape into each checkpoint, as plain data."""

    def __init__(self, cfg: DictConfig, shape: ImageShape):
        self.config = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
        self.shape = shape

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["config"] = self.config
        checkpoint["image_shape"] = self.shape._asdict()


def load_checkpoint(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint of this project. Nothing in it is executed.

    Raises:
        ValueError: The file is missing, damaged, or something else.
    """
    if not path.is_file():
        raise ValueError(f"The checkpoint {path} does not exist.")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch itself would load flipped bits silently
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise ValueError(
            f"{path} is not a checkpoint, or only a part of one ({error}; "
            f"{path.stat().st_size} bytes). Give another file, or another run."
        ) from error
    if damaged is not None:
        raise ValueError(
            f"{path} is damaged: the checksum of {damaged} does not match. "
            "Give another file, or another run."
        )
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise ValueError(
            f"{path} holds more than plain data and tensors, so it was not made by this "
            f"project and is not loaded ({str(error).splitlines()[0]})."
        ) from error
    if not isinstance(checkpoint, dict) or not {"config", "image_shape"} <= checkpoint.keys():
        raise ValueError(
            f"{path} is not a checkpoint of this project: it has no config in it. "
            "Give one from a run's checkpoints/ folder."
        )
    return checkpoint


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
