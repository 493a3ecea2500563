"""Checkpoint files that are whole or absent."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from linear_transformers.config.messages import first_line
from linear_transformers.files import replacing, room
from linear_transformers.runs.checkpoint import read_checkpoint


class WholeCheckpoints(TorchCheckpointIO):
    """Checkpoint I/O that writes a file and renames it, so that a checkpoint always loads."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                torch.save(checkpoint, partial)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            raise ValueError(
                f"The checkpoint {path} could not be written ({first_line(error)}; {room(path)}). "
                "Any earlier one is unchanged. Make room, or choose another paths.runs=DIR."
            ) from error

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        # To the CPU: Lightning moves what it restores; else every process loads to the first GPU.
        return read_checkpoint(Path(path))
