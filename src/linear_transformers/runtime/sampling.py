"""The job behind sample.py: a checkpoint becomes a recurrent network, and that makes images."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from linear_transformers.data import ImageDataModule, Images, ImageShape
from linear_transformers.data.images import to_sequences
from linear_transformers.distributions import ValueDistribution
from linear_transformers.distributions.base import check_temperature
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.runtime.build import build_data, build_model, checkpoint_path
from linear_transformers.runtime.checkpoint import file_hash, load_checkpoint
from linear_transformers.runtime.pictures import save_grid, save_images, to_rgb, with_hidden_rows
from linear_transformers.runtime.runs import claim_folder, shown
from linear_transformers.runtime.schema import TrainJob
from linear_transformers.runtime.validation import validated
from linear_transformers.sampling import complete, largest_step_difference, uniform_noise

# float32 rounding through a deep stack; a wrong recurrence is off by far more.
STEP_TOLERANCE = 1e-3
CHECKED_IMAGES = 4
GRID_COLUMNS = 16
MODES = ("complete", "generate")


@dataclass
class Trained:
    """A model out of a checkpoint, ready to sample from."""

    path: Path
    config: DictConfig
    shape: ImageShape
    model: AutoregressiveTransformer
    distribution: ValueDistribution


@dataclass
class Drawn:
    """Images out of a model, and how long they took."""

    images: Images
    seconds: float

    @property
    def images_per_second(self) -> float:
        return len(self.images) / self.seconds


def sample(cfg: DictConfig) -> None:
    """Complete test images or generate new ones, and write them with their provenance."""
    _check(cfg)
    trained = load_trained(checkpoint_path(cfg.ckpt, Path(cfg.paths.runs)), cfg.device)
    shape = trained.shape
    rows = 0 if cfg.mode == "generate" else shape.height // 2 if cfg.rows is None else cfg.rows
    if not 0 <= rows <= shape.height:
        raise ValueError(f"rows={rows} was asked for; the images have {shape.height} rows.")
    originals = None
    if cfg.mode == "complete":
        originals = _spread(_test_images(trained, cfg.data_root), cfg.n)
    out = _output_folder(cfg.out, trained.path, f"{cfg.mode}-seed{cfg.seed}")

    record: dict[str, Any] = {"checkpoint": str(trained.path), "sha256": file_hash(trained.path)}
    if cfg.check:
        record["step_against_forward"] = _proved(trained, cfg.data_root)
    drawn = draw(
        trained.model,
        trained.distribution,
        shape,
        originals=originals,
        rows=rows,
        count=cfg.n,
        batch=cfg.batch,
        seed=cfg.seed,
        temperature=cfg.temperature,
    )
    grid = write_samples(drawn.images, originals, shape, rows, out)
    record |= {
        "mode": cfg.mode,
        "rows_given": rows,
        "n": cfg.n,
        "batch": cfg.batch,
        "seed": cfg.seed,
        "temperature": cfg.temperature,
        "device": str(trained.model.head.weight.device),
        "seconds": round(drawn.seconds, 3),
        "images_per_second": round(drawn.images_per_second, 3),
        "config": OmegaConf.to_container(trained.config),
    }
    (out / "samples.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"{cfg.n} images, {drawn.images_per_second:.2f} a second, {drawn.seconds:.1f} s in all")
    print(f"grid     {shown(grid)}")
    print(f"record   {shown(out / 'samples.json')}")


def load_trained(path: Path, device: str = "auto") -> Trained:
    """Rebuild the model that a checkpoint holds; its config is checked like a typed one.

    Raises:
        ValueError: The checkpoint is missing, damaged or something else, or there is no
            such device.
    """
    checkpoint = load_checkpoint(path)
    shape = ImageShape(**checkpoint["image_shape"])
    weights = {
        name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()
    }
    if "${" in json.dumps(checkpoint["config"]):  # data, never expressions to evaluate here
        raise ValueError(f"The config in {path} holds an interpolation: it was tampered with.")
    try:
        config = validated(DictConfig(checkpoint["config"]), TrainJob)
        model, distribution = build_model(config, shape)
        model.load_state_dict(weights)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"{path} holds no model that can be rebuilt: {' '.join(str(error).split())}"
        ) from error
    return Trained(path, config, shape, model.to(_device(device)).eval(), distribution)


def draw(
    model: AutoregressiveTransformer,
    distribution: ValueDistribution,
    shape: ImageShape,
    *,
    originals: Images | None,
    rows: int,
    count: int,
    batch: int,
    seed: int,
    temperature: float,
) -> Drawn:
    """Complete the given images below their first `rows`, or make `count` from nothing."""
    known = rows * shape.width * shape.channels
    prefixes = (
        torch.zeros(count, 0, dtype=torch.long)
        if originals is None
        else to_sequences(originals)[:, :known].long()
    )
    finished: list[Tensor] = []
    start = time.perf_counter()
    for first in range(0, count, batch):
        indices = range(first, min(first + batch, count))
        noise = uniform_noise(distribution, seed=seed, indices=indices, length=shape.length)
        values = complete(
            model, distribution, prefixes[indices.start : indices.stop], noise,
            temperature=temperature,
        )  # fmt: skip
        finished.append(values.cpu())  # waits for the device: the time below is honest
    seconds = time.perf_counter() - start
    return Drawn(shape.to_images(torch.cat(finished)), seconds)


def write_samples(
    images: Images, originals: Images | None, shape: ImageShape, rows: int, out: Path
) -> Path:
    """Write the images and a grid of them: given / completed / original. Returns the grid."""
    pixels = to_rgb(images, shape)
    save_images(pixels, out)
    if originals is None:
        tiles = {"generated": pixels}
    else:
        original = to_rgb(originals, shape)
        given = with_hidden_rows(original, rows)
        tiles = {"given": given, "completed": pixels, "original": original}
    grid = out / "grid.png"
    save_grid({label: row[:GRID_COLUMNS] for label, row in tiles.items()}, grid)
    return grid


def _check(cfg: DictConfig) -> None:
    check_temperature(cfg.temperature)
    if cfg.mode not in MODES:
        raise ValueError(f"mode={cfg.mode} is unknown. Choose one of {list(MODES)}.")
    if cfg.seed < 0:
        raise ValueError(f"seed={cfg.seed} was asked for; it must be 0 or above.")
    for name in ("n", "batch"):
        if cfg[name] < 1:
            raise ValueError(f"{name}={cfg[name]} was asked for; it must be at least 1.")
    if cfg.mode == "generate" and cfg.rows is not None:
        raise ValueError(f"rows={cfg.rows} was given with mode=generate, which is given nothing.")


def _test_images(trained: Trained, data_root: str | None) -> Images:
    config = trained.config.copy()
    if data_root is not None:
        if "root" not in config.data:
            raise ValueError(
                f"data_root={data_root} was given, but {config.data._target_} has no root."
            )
        config.data.root = data_root
    data: ImageDataModule = build_data(config)
    if data.shape != trained.shape:
        raise ValueError(
            f"The data hold images of {data.shape}, the checkpoint is of {trained.shape}. "
            "Give it the images it was trained on."
        )
    return data.splits.test


def _spread(images: Images, count: int) -> Images:
    """So many of the images, evenly spread: neighbours in a file are often alike."""
    if count > len(images):
        raise ValueError(f"n={count} was asked for; there are {len(images)} test images.")
    return images[np.linspace(0, len(images) - 1, count).round().astype(int)]


def _proved(trained: Trained, data_root: str | None) -> float:
    """Compare the two forms on this checkpoint before anything is made with one of them."""
    device = trained.model.head.weight.device
    images = _test_images(trained, data_root)[:CHECKED_IMAGES]
    values = to_sequences(images).long().to(device)
    difference = largest_step_difference(trained.model, values)
    print(f"check    step against forward: largest difference {difference:.2e}")
    if difference > STEP_TOLERANCE:
        raise ValueError(
            f"Step and forward differ by {difference:.2e}, more than {STEP_TOLERANCE:g}. "
            "This checkpoint must not be sampled from in recurrent mode."
        )
    return difference


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:  # torch asserts where CUDA is not built in
        raise ValueError(
            f"device={name} cannot be used ({str(error).splitlines()[0]}). Use device=cpu."
        ) from error


def _output_folder(out: str | None, checkpoint: Path, label: str) -> Path:
    """A folder for this job alone: the one asked for, or a new one in the run's samples."""
    if out is not None:
        folder = Path(out)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"out={out} exists and is not empty. Choose another folder.")
    else:
        beside = checkpoint.parent
        folder = (beside.parent if beside.name == "checkpoints" else beside) / "samples" / label
    try:
        if out is None:
            return claim_folder(folder, numbered=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The folder {folder} cannot be made ({error.strerror}). Choose one with out=DIR."
        ) from error
    return folder
