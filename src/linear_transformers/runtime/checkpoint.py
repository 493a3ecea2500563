"""Checkpoints that are whole or absent, say what made them, and load as data only."""

import hashlib
import os
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.io import TorchCheckpointIO
from omegaconf import DictConfig, OmegaConf

from linear_transformers.data import Shape
from linear_transformers.runtime.complaints import first_line
from linear_transformers.runtime.runs import Run


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
            raise ValueError(
                f"The checkpoint {path} could not be written ({error}). An earlier one, if "
                "there is one, is as it was. Make room, or choose another paths.runs=DIR."
            ) from error
        finally:
            partial.unlink(missing_ok=True)  # after Ctrl-C too

    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        # "cpu" by default: a GPU's checkpoint must load where there is none, and on several
        # GPUs not all copies on the first. Lightning moves what it restores.
        return load_checkpoint(Path(path), map_location=map_location or "cpu")


class RunInCheckpoint(Callback):
    """Puts the resolved configuration and the data's shape into each checkpoint, as plain data,
    and lets a run that was moved find its own best checkpoint again."""

    def __init__(self, cfg: DictConfig, shape: Shape, run: Run):
        self.config = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
        self.shape = shape
        self.run = run

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["config"] = self.config
        checkpoint["shape"] = self.shape._asdict()

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # Lightning forgets which checkpoint was best when the directory has another path.
        for state in checkpoint["callbacks"].values():
            before = state.get("dirpath")
            if before is None or Path(before).parent.name != self.run.path.name:
                continue
            here = str(self.run.checkpoints)
            for name, value in state.items():
                if isinstance(value, str):
                    state[name] = value.replace(before, here)
            best = state["best_k_models"]
            state["best_k_models"] = {path.replace(before, here): best[path] for path in best}


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
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
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
            f"{path} is not a checkpoint of plain data and tensors, so it was not made by "
            f"this project and is not loaded ({first_line(error)})."
        ) from error
    if not _is_ours(checkpoint):
        raise ValueError(
            f"{path} is not a checkpoint of this project: it lacks config, shape or "
            "state_dict. Give one from a run's checkpoints/ folder."
        )
    return checkpoint


def _is_ours(checkpoint: Any) -> bool:
    match checkpoint:
        case {"config": {"model": dict()}, "shape": dict(shape), "state_dict": dict(weights)}:
            return all(_is_plain(name, value) for name, value in shape.items()) and all(
                isinstance(weight, torch.Tensor) for weight in weights.values()
            )
    return False


def _is_plain(name: Any, value: Any) -> bool:
    """Whether a part of a shape is what it must be: labels and their kind are words, all else
    are sizes."""
    if name == "labels":
        return isinstance(value, tuple) and all(isinstance(label, str) for label in value)
    return isinstance(value, str) if name == "kind" else isinstance(value, int) and value > 0


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
