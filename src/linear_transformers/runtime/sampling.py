"""The job behind sample.py: a checkpoint becomes a recurrent network, and that makes images."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from linear_transformers.data import ImageDataModule, Images
from linear_transformers.data.image_file import read_image
from linear_transformers.data.masks import mask_of
from linear_transformers.data.sequences import to_sequences
from linear_transformers.distributions import Categorical
from linear_transformers.distributions.base import check_temperature
from linear_transformers.runtime.build import build_data, build_trackers, checkpoint_path
from linear_transformers.runtime.checkpoint import file_hash
from linear_transformers.runtime.pictures import save_animation, save_grid, tiles_of, to_rgb
from linear_transformers.runtime.project import git_state
from linear_transformers.runtime.prompts import images_and_mask, prompts_of
from linear_transformers.runtime.sample_folder import SampleFolder
from linear_transformers.runtime.sweeps import Outcome
from linear_transformers.runtime.tracking import Description, Tracker, started
from linear_transformers.runtime.trained import Trained, load_trained
from linear_transformers.runtime.validation import plain
from linear_transformers.sampling import (
    Completed,
    Prompts,
    Sampler,
    Stepper,
    bits_per_dim,
    complete_in_batches,
    largest_step_difference,
    stepper_of,
)

# float32 rounding through a deep stack; a wrong recurrence is off by far more.
STEP_TOLERANCE = 1e-3
CHECKED_IMAGES = 4
MODES = ("complete", "generate")
# What an image depends on: a job that is continued must agree in all of these.
SETTINGS = (
    "mode", "image", "resize", "background", "mask", "rows", "n", "seed", "temperature", "top_k",
    "top_p", "weights", "precision",
)  # fmt: skip
FIGURES = ("images_per_second", "milliseconds_per_step", "seconds_to_an_image")


def sample(cfg: DictConfig) -> Outcome:
    """Complete images or generate new ones, and write each as it is finished."""
    _check(cfg)
    path = checkpoint_path(cfg.ckpt, Path(cfg.paths.runs))
    trained = load_trained(path, device=cfg.device, weights=cfg.weights)
    stepper = stepper_of(trained.model, name=cfg.stepper, precision=cfg.precision)
    sampler = _sampler(cfg, trained)
    prompts, originals = _prompts(cfg, trained)
    folder = SampleFolder.open(
        cfg.out,
        checkpoint=path,
        label=f"{cfg.mode}-seed{cfg.seed}",
        settings={
            "sha256": file_hash(path),
            "originals": originals,
            **{name: cfg[name] for name in SETTINGS},
        },
        overwrite=cfg.overwrite,
        resume=cfg.continue_,
    )
    trackers = build_trackers(cfg, _description(cfg, trained, folder.path))
    with started(trackers) as lines:
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
        if cfg.check:
            folder.record["step_against_forward"] = _proved(trained, stepper, cfg.data_root)
        folder.record["stepper"] = stepper.description
        try:
            _draw(cfg, trained, stepper, sampler, prompts, folder)
        except KeyboardInterrupt:
            print(f"stopped  {len(folder.done)} of {prompts.count} images", file=sys.stderr)
            print(f"next     the same command with out={folder} continue=true", file=sys.stderr)
            sys.exit(130)
        _show(cfg, trained, prompts, folder, trackers)
    _report(folder)
    return Outcome(None, {name: folder.record.get(name) for name in FIGURES})


def _draw(
    cfg: DictConfig,
    trained: Trained,
    stepper: Stepper,
    sampler: Sampler,
    prompts: Prompts,
    folder: SampleFolder,
) -> None:
    """Make the images that are missing, and write each batch as it is finished."""
    folder.record |= {
        "checkpoint": str(trained.path),
        "attention": type(trained.model.stack.attention).__name__,
        "device": str(trained.model.device),
        "batch": cfg.batch,
        "config": trained.config,
    }
    folder.save()
    with _bar(prompts, len(folder.done)) as on_value:
        parts = complete_in_batches(
            stepper,
            trained.distribution,
            prompts,
            sample=sampler,
            batch=cfg.batch,
            seed=cfg.seed,
            done=folder.done,
            on_value=on_value,
        )
        for part in parts:
            _keep(part, trained, prompts, folder)


def _keep(part: Completed, trained: Trained, prompts: Prompts, folder: SampleFolder) -> None:
    """Write finished images with what they cost, and what the model thinks of them."""
    whole, drawn = bits_per_dim(trained.model, trained.distribution, part.values, prompts.known)
    rows = []
    for i, number in enumerate(part.numbers):
        prompt, copy = divmod(number, prompts.n)
        several = prompts.n > 1 and folder.record["mode"] == "complete"
        name = f"{prompt:04d}-{copy}" if several else f"{number:04d}"
        row = {"number": number, "file": f"{name}.png", "bits_per_dim": round(whole[i], 4)}
        if prompts.steps:
            row["bits_per_drawn_dim"] = round(drawn[i], 4)
        rows.append(row)
    record = folder.record
    record["seconds"] = round(record["seconds"] + part.seconds, 3)
    record["steps"] += prompts.steps
    count = len(record["images"]) + len(rows)
    record["images_per_second"] = round(count / record["seconds"], 4)
    if record["steps"]:
        milliseconds = 1000 * record["seconds"] / record["steps"]
        record["milliseconds_per_step"] = round(milliseconds, 3)
        record["seconds_to_an_image"] = round(milliseconds * prompts.steps / 1000, 3)
    folder.add(rows, to_rgb(trained.shape.to_images(part.values), trained.shape))


def _show(
    cfg: DictConfig,
    trained: Trained,
    prompts: Prompts,
    folder: SampleFolder,
    trackers: list[Tracker],
) -> None:
    """Make the grid and the animation, and tell the trackers of everything."""
    images, mask = images_and_mask(prompts, trained.shape)
    originals = to_rgb(images, trained.shape) if cfg.mode == "complete" else None
    tiles = tiles_of(folder.pixels(), originals, mask, prompts.n)
    pictures = {"sample/grid": folder.path / "grid.png"}
    save_grid(tiles, pictures["sample/grid"])
    if cfg.gif and prompts.steps:
        pictures["sample/animation"] = folder.path / "grid.gif"
        save_animation(tiles, mask, pictures["sample/animation"])
    figures = {name: value for name, value in folder.record.items() if name in FIGURES}
    for tracker in trackers:
        for name, path in pictures.items():
            tracker.log_picture(name, path, 0)
        tracker.log_table("sample/images", folder.record["images"], 0)
        tracker.log_metrics({f"sample/{name}": value for name, value in figures.items()}, 0)


def _report(folder: SampleFolder) -> None:
    record = folder.record
    bits = fmean(image["bits_per_dim"] for image in record["images"])
    count = len(record["images"])
    print(
        f"{count} image{'s' if count > 1 else ''}, {record['images_per_second']:.2f} a second, "
        f"{bits:.3f} bits/dim on average"
    )
    if record["steps"]:
        print(
            f"stepper  {record['stepper']}, {record['attention']} on {record['device']}: "
            f"{record['milliseconds_per_step']:.2f} ms a step, "
            f"{record['seconds_to_an_image']:.2f} s to an image"
        )
    print(
        f"grid     {folder}/grid.png"
        + (", grid.gif" if (folder.path / "grid.gif").is_file() else "")
    )
    print(f"record   {folder}/samples.json")


def _check(cfg: DictConfig) -> None:
    check_temperature(cfg.temperature)
    if cfg.mode not in MODES:
        raise ValueError(f"mode={cfg.mode} is unknown. Choose one of {list(MODES)}.")
    if cfg.seed < 0:
        raise ValueError(f"seed={cfg.seed} was asked for; it must be 0 or above.")
    for name in ("n", "batch", "images"):
        if cfg[name] < 1:
            raise ValueError(f"{name}={cfg[name]} was asked for; it must be at least 1.")
    if not 0 <= cfg.background <= 255:
        raise ValueError(f"background={cfg.background}: greys run from 0 to 255.")
    if cfg.continue_ and cfg.overwrite:
        raise ValueError("continue=true keeps what overwrite=true removes. Give one of them.")
    if cfg.image is not None and cfg.index is not None:
        raise ValueError("index= chooses test images; with image=FILE there is one image only.")
    if cfg.mode == "generate":
        for name in ("rows", "image", "index"):
            if cfg[name] is not None:
                raise ValueError(
                    f"{name}={cfg[name]} was given with mode=generate, which is given nothing."
                )


def _sampler(cfg: DictConfig, trained: Trained) -> Sampler:
    """How a value is drawn from the model's output."""
    options: dict[str, Any] = {"temperature": cfg.temperature}
    for name in ("top_k", "top_p"):
        if cfg[name] is None:
            continue
        if not isinstance(trained.distribution, Categorical):
            raise ValueError(
                f"{name}={cfg[name]} needs one probability for each value, a categorical head; "
                f"{trained.path} has a {type(trained.distribution).__name__}. Use temperature."
            )
        options[name] = cfg[name]
    return partial(trained.distribution.sample, **options)


def _prompts(cfg: DictConfig, trained: Trained) -> tuple[Prompts, list[Any]]:
    """What is given, and where it is from: the test images' indices, or a file."""
    shape = trained.shape
    if cfg.mode == "generate":
        return Prompts.nothing(shape.length, cfg.n), []
    mask = mask_of(cfg.mask, shape, rows=cfg.rows)
    if cfg.image is not None:
        image = read_image(Path(cfg.image), shape, resize=cfg.resize, background=cfg.background)
        return prompts_of(image, mask, cfg.n), [cfg.image]
    images = _test_images(trained, cfg.data_root)
    chosen = _spread(len(images), cfg.images) if cfg.index is None else list(cfg.index)
    for i in chosen:
        if not 0 <= i < len(images):
            raise ValueError(f"index={i} was asked for; test images are 0 to {len(images) - 1}.")
    return prompts_of(images[chosen], mask, cfg.n), chosen


def _spread(available: int, count: int) -> list[int]:
    """So many indices, evenly spread: neighbours in a file are often alike."""
    if count > available:
        raise ValueError(f"images={count} was asked for; there are {available} test images.")
    return np.linspace(0, available - 1, count).round().astype(int).tolist()


def _test_images(trained: Trained, data_root: str | None) -> Images:
    config = trained.model_config.copy()
    if data_root is not None:
        if "root" not in config.data:
            raise ValueError(
                f"data_root={data_root} was given, but {config.data._target_} has no root."
            )
        config.data.root = data_root
    data = build_data(config)
    assert isinstance(data, ImageDataModule)  # a model of images was trained on them
    if data.shape != trained.shape:
        raise ValueError(
            f"The data hold images of {data.shape}, the checkpoint is of {trained.shape}. "
            "Give it the images it was trained on."
        )
    return data.splits.test


def _proved(trained: Trained, stepper: Stepper, data_root: str | None) -> float:
    """Compare the stepper with `forward` on this checkpoint before anything is made with it."""
    images = _test_images(trained, data_root)[:CHECKED_IMAGES]
    values = to_sequences(images).long().to(trained.model.device)
    difference = largest_step_difference(stepper, values)
    print(f"check    step against forward: largest difference {difference:.2e}")
    if not difference <= STEP_TOLERANCE:  # NaN, too
        raise ValueError(
            f"Step and forward differ by {difference:.2e}, more than {STEP_TOLERANCE:g}. "
            f"This checkpoint must not be sampled from with stepper={stepper.name}."
        )
    return difference


def _description(cfg: DictConfig, trained: Trained, folder: Path) -> Description:
    """A job of its own, on the page of its run's group."""
    beside = trained.path.parent
    run = (beside.parent if beside.name == "checkpoints" else beside).name
    return Description(
        folder=folder,
        runs=Path(cfg.paths.runs),
        name=f"{run}-{folder.name}",
        job_type="sample",
        group=trained.config.get("group") or run,
        tags=tuple(trained.config.get("tags", ())),
        config={"sample": plain(cfg), **trained.config, "git": git_state()},
    )


@contextmanager
def _bar(prompts: Prompts, done: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over all values, where there is a terminal to show it."""
    console = Console()
    steps = max(1, prompts.steps)
    if not console.is_terminal:
        yield lambda count: None
        return
    columns = (
        TextColumn("{task.fields[images]:.0f}/{task.fields[count]} images"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[rate]:.2f} images/s"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(
            "draw", total=prompts.count * steps, completed=done * steps, images=done,
            count=prompts.count, rate=0.0,
        )  # fmt: skip

        def on_value(count: int) -> None:
            bar.advance(task, count)
            now = bar.tasks[task]
            rate = (now.speed or 0.0) / steps
            bar.update(task, images=now.completed // steps, rate=rate)

        yield on_value
