"""The folder of one sampling job: its images, and samples.json, which says what made them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from linear_transformers.runtime.pictures import save_image
from linear_transformers.runtime.project import shown
from linear_transformers.runtime.runs import claim_folder

RECORD = "samples.json"


class SampleFolder:
    """Images as they are finished. Whatever `samples.json` lists is there, and whole.

    Attributes:
        path: The folder.
        record: What `samples.json` holds; `save` writes it.
    """

    def __init__(self, path: Path, record: dict[str, Any]):
        self.path = path
        self.record = {"images": [], "seconds": 0.0, "steps": 0} | record

    @classmethod
    def open(
        cls,
        out: str | None,
        *,
        checkpoint: Path,
        label: str,
        settings: dict[str, Any],
        overwrite: bool,
        resume: bool,
    ) -> "SampleFolder":
        """A folder for this job alone, or the one of the job that it continues.

        Args:
            out: The folder asked for; None is a new one, or the last, of this label in the
                `samples/` of the checkpoint's run.
            checkpoint: What is sampled from.
            label: Of a folder that nobody named.
            settings: What the images depend on.
            overwrite: Whether an earlier job's images in `out` may go.
            resume: Whether to finish an earlier job.

        Raises:
            ValueError: The folder is taken, or cannot be made; or the job to continue is not
                there, or was another one.
        """
        beside = checkpoint.parent
        samples = (beside.parent if beside.name == "checkpoints" else beside) / "samples"
        if resume:
            return cls._resumed(Path(out) if out else _last(samples, label), settings)
        path = samples / label if out is None else Path(out)
        try:
            if out is None:
                path = claim_folder(path, numbered=True)
            elif path.is_dir() and any(path.iterdir()):
                cls._clear(path, overwrite)
            else:
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"The folder {path} cannot be made ({error.strerror}). Choose one with out=DIR."
            ) from error
        return cls(path, settings)

    @classmethod
    def _resumed(cls, path: Path, settings: dict[str, Any]) -> "SampleFolder":
        if not (path / RECORD).is_file():
            raise ValueError(
                f"continue=true was asked for, but {path} holds no {RECORD} of a job that was "
                "interrupted. Leave continue=true out, or give that job's out=DIR."
            )
        record = json.loads((path / RECORD).read_text())
        for name, ours in settings.items():
            if record.get(name) != ours:
                raise ValueError(
                    f"The job in {path} has {name}={record.get(name)}, this one {name}={ours}. "
                    "Give it the same, or another out=DIR without continue=true."
                )
        return cls(path, record)

    @staticmethod
    def _clear(path: Path, overwrite: bool) -> None:
        """Remove an earlier job's files, and nothing else."""
        if not overwrite:
            raise ValueError(
                f"out={path} exists and is not empty. Choose another folder, or overwrite=true."
            )
        if not (path / RECORD).is_file():
            raise ValueError(
                f"out={path} holds files but no {RECORD}, so they are not an earlier job's, and "
                "overwrite=true does not touch them. Choose another folder."
            )
        record = json.loads((path / RECORD).read_text())
        for name in [
            *(image["file"] for image in record["images"]),
            "grid.png",
            "grid.gif",
            RECORD,
        ]:
            (path / Path(name).name).unlink(missing_ok=True)

    @property
    def done(self) -> set[int]:
        """Numbers of the images that are there."""
        return {image["number"] for image in self.record["images"]}

    def add(self, rows: Sequence[dict[str, Any]], pixels: np.ndarray) -> None:
        """Write some finished images, then list them.

        Args:
            rows: What to list: `number`, `file` and whatever else is known of each.
            pixels: [r, h, w, 3].
        """
        for row, image in zip(rows, pixels, strict=True):
            save_image(image, self.path / row["file"])
        self.record["images"] += rows
        self.record["images"].sort(key=lambda row: row["number"])
        self.save()

    def pixels(self) -> np.ndarray:
        """All images, in order of their numbers, [r, h, w, 3]."""
        paths = [self.path / row["file"] for row in self.record["images"]]
        return np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])

    def save(self) -> None:
        """Write the record, whole or not at all."""
        partial = self.path / f".{RECORD}.part"
        partial.write_text(json.dumps(self.record, indent=2) + "\n")
        partial.replace(self.path / RECORD)

    def __str__(self) -> str:
        return str(shown(self.path))


def _last(samples: Path, label: str) -> Path:
    """The newest folder of a label: label, label-2, label-3, ..."""
    taken = [path for path in samples.glob(f"{label}*") if path.is_dir()]
    return max(taken, key=lambda path: (len(path.name), path.name), default=samples / label)
