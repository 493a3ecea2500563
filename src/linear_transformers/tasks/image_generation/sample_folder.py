"""The folder of one sampling job: its images, and their record, samples.json."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from linear_transformers.files import numbered, remove_leftovers, replacing
from linear_transformers.pictures.grids import save_image
from linear_transformers.runs.folder import claim_folder, shown

RECORD = "samples.json"
RATES = ("images_per_second", "milliseconds_per_step", "seconds_to_an_image")


@dataclass
class SampleRecord:
    """The settings and costs of sampled images; `samples.json` is this as one flat object.

    Attributes:
        settings: What the images depend on: a job that is continued must agree in all of it.
        checkpoint: The checkpoint's path.
        config: The configuration of the run that trained it.
        attention: The model's attention.
        device: The device.
        stepper: The description of the stepper.
        batch: The largest number of images side by side.
        steps_each: The number of steps per image.
        step_against_forward: The largest difference of the two forms, where it was asked for.
        images: A row for each finished image.
        seconds: The time that they took, in seconds.
        steps: The number of steps so far.
    """

    settings: dict[str, Any]
    checkpoint: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    attention: str = ""
    device: str = ""
    stepper: str = ""
    batch: int = 0
    steps_each: int = 0
    step_against_forward: float | None = None
    images: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0

    @classmethod
    def read(cls, path: Path) -> "SampleRecord":
        """Read `samples.json`.

        Raises:
            ValueError: It is damaged.
        """
        try:
            found = json.loads(path.read_text())
            own = {f.name for f in fields(cls)} - {"settings"}
            settings = {k: v for k, v in found.items() if k not in own and k not in RATES}
            record = cls(settings, **{k: v for k, v in found.items() if k in own})
            if not all({"number", "file"} <= row.keys() for row in record.images):
                raise ValueError
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged: it is no record of sampled images. Remove the folder, or "
                "choose another with out=DIR."
            ) from error
        return record

    @property
    def figures(self) -> dict[str, float]:
        """The rates so far: images per second, milliseconds per step, seconds per image."""
        found = {}
        if self.seconds:
            found[RATES[0]] = round(len(self.images) / self.seconds, 4)
        if self.steps:
            milliseconds = 1000 * self.seconds / self.steps
            found[RATES[1]] = round(milliseconds, 3)
            found[RATES[2]] = round(milliseconds * self.steps_each / 1000, 4)
        return found

    def plain(self) -> dict[str, Any]:
        """Return the record as one flat object."""
        facts = asdict(self)
        return {**facts.pop("settings"), **facts, **self.figures}


class SampleFolder:
    """The finished images of a job. Every image that `samples.json` lists is whole.

    Attributes:
        path: The folder.
        record: What `samples.json` holds; `save` writes it.
    """

    def __init__(self, path: Path, record: SampleRecord):
        self.path = path
        self.record = record

    @classmethod
    def open(
        cls,
        out: str | None,
        *,
        run: Path,
        label: str,
        settings: dict[str, Any],
        overwrite: bool,
        resume: bool,
    ) -> "SampleFolder":
        """Return a folder for this job alone, or the one of the job that it continues.

        Args:
            out: The folder; None is a new one in the run's `samples/`, or the last of this
                label to resume.
            run: The folder of the run that is sampled from.
            label: The name of the folder if `out` is None.
            settings: What the images depend on.
            overwrite: Whether to remove an earlier job's images in `out`.
            resume: Whether to finish an earlier job.

        Raises:
            ValueError: The folder is taken or cannot be made, or holds no such job to resume.
        """
        own = run / "samples" / label
        if resume:
            newest = [own, *numbered(own).values()][-1]
            return cls._resumed(Path(out or newest), settings)
        path = own if out is None else Path(out)
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
        return cls(path, SampleRecord(settings))

    @classmethod
    def _resumed(cls, path: Path, settings: dict[str, Any]) -> "SampleFolder":
        if not (path / RECORD).is_file():
            raise ValueError(
                f"continue=true was asked for, but {path} holds no {RECORD} of a job that was "
                "interrupted. Leave continue=true out, or give that job's out=DIR."
            )
        remove_leftovers(path)
        record = SampleRecord.read(path / RECORD)
        if record.settings.get("sha256") != settings["sha256"]:
            raise ValueError(
                f"The job in {path} is of another checkpoint: the run was trained on since, or "
                "ckpt= is of another. Give another out=DIR without continue=true."
            )
        for name, ours in settings.items():
            if record.settings.get(name) != ours:
                raise ValueError(
                    f"The job in {path} has {name}={record.settings.get(name)}, this one "
                    f"{name}={ours}. Give it the same, or another out=DIR without continue=true."
                )
        whole = [row for row in record.images if _is_whole(path / Path(row["file"]).name)]
        if len(whole) < len(record.images):
            print(f"note     {len(record.images) - len(whole)} damaged images are drawn again")
            record.images = whole
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
        images = [row["file"] for row in SampleRecord.read(path / RECORD).images]
        for name in [*images, "grid.png", "grid.gif", RECORD]:
            (path / Path(name).name).unlink(missing_ok=True)

    @property
    def done(self) -> set[int]:
        """The numbers of the finished images."""
        return {image["number"] for image in self.record.images}

    def add(self, rows: Sequence[dict[str, Any]], pixels: np.ndarray) -> None:
        """Write some finished images, then list them.

        Args:
            rows: What to list: `number`, `file` and whatever else is known of each.
            pixels: The images [r, h, w, 3].
        """
        for row, image in zip(rows, pixels, strict=True):
            save_image(image, self.path / row["file"])
        self.record.images += rows
        self.record.images.sort(key=lambda row: row["number"])
        self.save()

    def pixels(self) -> np.ndarray:
        """Return all images, in order of their numbers, [r, h, w, 3]."""
        paths = [self.path / row["file"] for row in self.record.images]
        return np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])

    def save(self) -> None:
        """Write the record, whole or not at all."""
        with replacing(self.path / RECORD) as partial:
            partial.write_text(json.dumps(self.record.plain(), indent=2) + "\n")

    def __str__(self) -> str:
        return str(shown(self.path))


def _is_whole(path: Path) -> bool:
    try:
        with Image.open(path, formats=["PNG"]) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, zlib.error):
        return False
    return True
