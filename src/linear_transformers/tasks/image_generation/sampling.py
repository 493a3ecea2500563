"""Sampling from a model of images, for sample.py: complete images, or generate new ones."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from linear_transformers.calls import call_again
from linear_transformers.config.messages import counted, override
from linear_transformers.config.ranges import Count, CountOrZero, Positive, Seed, Share
from linear_transformers.data.image_file import read_image
from linear_transformers.data.masks import mask_of
from linear_transformers.data.sequences import to_sequences
from linear_transformers.pictures.grids import save_animation, save_grid, tiles_of, to_rgb
from linear_transformers.runs.checkpoint import file_hash
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.sampling import (
    Completed,
    Prompts,
    Sampler,
    Stepper,
    bits_per_dim,
    complete_in_batches,
    stepper_of,
)
from linear_transformers.stopping import Stopped
from linear_transformers.tasks.base import Output, Use, Watch
from linear_transformers.tasks.generation import checked_steps, sampler_of
from linear_transformers.tasks.image_generation.model import ImageModel
from linear_transformers.tasks.image_generation.prompts import images_and_mask, prompts_of
from linear_transformers.tasks.image_generation.sample_folder import SampleFolder

CHECKED_IMAGES = 4
IMAGES = 8  # completed by default
# What an image depends on: a job that is continued must agree in all of these.
SETTINGS = (
    "mode", "image", "resize", "background", "mask", "rows", "n", "seed", "temperature", "top_k",
    "top_p", "precision",
)  # fmt: skip


@dataclass(kw_only=True)
class SampleImages(Use[ImageModel]):
    """Complete or generate images. See conf/sample/image_generation.yaml for the options."""

    mode: Literal["complete", "generate"]
    images: Count | None
    index: list[CountOrZero] | None
    image: str | None
    resize: bool
    background: Annotated[int, Ge(0), Le(255)]
    mask: str | None
    rows: CountOrZero | None
    n: Count
    seed: Seed
    temperature: Positive
    top_k: Count | None
    top_p: Share | None
    stepper: str
    precision: str
    batch: Count
    check: bool
    data_root: str | None
    out: str | None
    overwrite: bool
    continue_: bool
    gif: bool

    def run(self, trained: ImageModel, watch: Watch) -> Outcome:
        """Sample images, and write each batch as it is finished."""
        self._refuse_contradictions()
        task = trained.task
        # What rounding costs is not what is checked, and rounding is in place.
        exact = copy.deepcopy(task.model) if self.check else None
        stepper = stepper_of(task.model, name=self.stepper, precision=self.precision)
        sampler = sampler_of(
            task.distribution, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p
        )
        prompts, originals = self._prompts(trained)
        difference = None
        if exact is not None:
            images = trained.examples(data_root=self.data_root)[:CHECKED_IMAGES]
            values = to_sequences(images).long().to(exact.device)
            difference = checked_steps(stepper_of(exact, name=self.stepper), values)
        folder = self._folder(trained, prompts, originals)  # what is refused leaves none behind
        record = folder.record
        if difference is not None:
            record.step_against_forward = difference
        with watch(folder.path) as output:
            record.checkpoint, record.config = str(trained.path), trained.config
            record.attention = task.model.stack.mixer_name
            record.device, record.stepper = str(task.model.device), stepper.description
            record.batch, record.steps_each = self.batch, prompts.steps
            folder.save()
            try:
                self._draw(trained, stepper, sampler, prompts, folder)
                self._show(trained, prompts, folder, output)
            except Stopped as stopped:
                again = call_again(
                    "sample", override("out", folder), "continue=true", without=("overwrite",)
                )
                stopped.lines += [
                    f"kept     {len(folder.done)} of {prompts.count} images in {folder}",
                    f"next     {again}",
                ]
                raise
        _report(folder)
        return Outcome(None, record.figures)

    def _refuse_contradictions(self) -> None:
        if self.continue_ and self.overwrite:
            raise ValueError("continue=true keeps what overwrite=true removes. Give one of them.")
        given = [name for name in ("image", "index", "images") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{given[0]}= and {given[1]}= were both given: image is a file of your own, index "
                "names test images, images counts them. Give one of them."
            )
        if self.index == []:
            raise ValueError("index=[] names no test image. Leave it out, or give index=[0].")
        if self.index is not None and len({*self.index}) < len(self.index):
            raise ValueError(f"index={self.index} names an image twice: n=2 completes each twice.")
        if self.image is None and (self.resize or self.background):
            name = "resize=true" if self.resize else f"background={self.background}"
            raise ValueError(f"{name} is for a picture file of your own: image=FILE.")
        tested = self.check or (self.mode == "complete" and self.image is None)
        if self.data_root is not None and not tested:
            raise ValueError(
                f"data_root={self.data_root} is where test images are taken from, and none are. "
                "Leave it out."
            )
        if self.mode == "generate":
            for name in ("rows", "image", "index", "images", "mask"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"{name}={value} was given with mode=generate, which has no prompt."
                    )

    def _folder(self, trained: ImageModel, prompts: Prompts, originals: list[Any]) -> SampleFolder:
        """Make the folder of the images, or open the one of the job that is continued."""
        return SampleFolder.open(
            self.out,
            run=trained.folder,
            label=f"{self.mode}-seed{self.seed}",
            settings={
                "sha256": file_hash(trained.path),
                "weights": trained.weights,
                "originals": originals,
                **{name: getattr(self, name) for name in SETTINGS},
                "mask": self.mask or "bottom",
                "given": prompts.digest,  # last: what differs is said in the options' words first
            },
            overwrite=self.overwrite,
            resume=self.continue_,
        )

    def _prompts(self, trained: ImageModel) -> tuple[Prompts, list[Any]]:
        """Return the prompts, and their origins: the test images' indices, or a file."""
        shape = trained.task.shape
        if self.mode == "generate":
            return Prompts.nothing(shape.length, self.n), []
        hidden = "bottom" if self.mask is None else self.mask
        mask = mask_of(hidden, shape, rows=self.rows, resize=self.resize)
        if mask.all():
            given = f"rows={self.rows}" if self.mask is None else f"mask={self.mask}"
            raise ValueError(f"{given} leaves nothing to draw: every pixel is given.")
        if self.image is not None:
            image = read_image(
                Path(self.image), shape, resize=self.resize, background=self.background
            )
            return prompts_of(image, mask, self.n), [self.image]
        images = trained.examples(data_root=self.data_root)
        count = self.images or min(IMAGES, len(images))
        chosen = _spread(len(images), count) if self.index is None else self.index
        for i in chosen:
            if not 0 <= i < len(images):
                raise ValueError(
                    f"index={i} was asked for; test images are 0 to {len(images) - 1}."
                )
        return prompts_of(images[chosen], mask, self.n), chosen

    def _draw(
        self,
        trained: ImageModel,
        stepper: Stepper,
        sampler: Sampler,
        prompts: Prompts,
        folder: SampleFolder,
    ) -> None:
        """Make the images that are missing, and write each batch as it is finished."""
        with _bar(prompts, len(folder.done)) as on_value:
            parts = complete_in_batches(
                stepper,
                trained.task.distribution,
                prompts,
                sample=sampler,
                batch=self.batch,
                seed=self.seed,
                done=folder.done,
                on_value=on_value,
            )
            for part in parts:
                self._keep(part, trained, prompts, folder)

    def _keep(
        self, part: Completed, trained: ImageModel, prompts: Prompts, folder: SampleFolder
    ) -> None:
        """Write finished images with their cost and their bits per dimension."""
        task = trained.task
        whole, drawn = bits_per_dim(task.model, task.distribution, part.values, prompts.known)
        tested = [] if self.image else folder.record.settings["originals"]
        rows = []
        for i, number in enumerate(part.numbers):
            several = prompts.n > 1 and self.mode == "complete"
            prompt, copy = divmod(number, prompts.n if several else 1)
            first = tested[prompt] if tested else prompt
            name = f"{first:04d}-{copy}" if several else f"{first:04d}"
            row = {"number": number, "file": f"{name}.png", "bits_per_dim": round(whole[i], 4)}
            if prompts.steps:
                row["bits_per_drawn_dim"] = round(drawn[i], 4)
            rows.append(row)
        folder.record.seconds = round(folder.record.seconds + part.seconds, 6)
        folder.record.steps += prompts.steps
        folder.add(rows, to_rgb(task.shape.to_images(part.values), task.shape))

    def _show(
        self, trained: ImageModel, prompts: Prompts, folder: SampleFolder, output: Output
    ) -> None:
        """Write the grid and the animation, and show everything to the trackers."""
        shape = trained.task.shape
        images, mask = images_and_mask(prompts, shape)
        originals = to_rgb(images, shape) if self.mode == "complete" else None
        tiles = tiles_of(folder.pixels(), originals, mask, prompts.n)
        grid, animation = folder.path / "grid.png", folder.path / "grid.gif"
        save_grid(tiles, grid)
        output.picture("sample/grid", grid)
        if self.gif and prompts.steps:
            save_animation(tiles, mask, animation)
            output.picture("sample/animation", animation)
        output.table("sample/images", folder.record.images)
        figures = folder.record.figures
        output.metrics({f"sample/{name}": value for name, value in figures.items()})


def _report(folder: SampleFolder) -> None:
    record, figures = folder.record, folder.record.figures
    bits = fmean(image["bits_per_dim"] for image in record.images)
    print(
        f"{counted(len(record.images), 'image')}, {figures['images_per_second']:.2f} a second, "
        f"{bits:.3f} bits/dim of whole images"
    )
    if record.steps:
        print(
            f"stepper  {record.stepper}, {record.attention} on {record.device}: "
            f"{figures['milliseconds_per_step']:.2f} ms a step, "
            f"{figures['seconds_to_an_image']:.2f} s to an image"
        )
    moving = ", grid.gif" if (folder.path / "grid.gif").is_file() else ""
    print(f"grid     {folder}/grid.png{moving}")
    print(f"record   {folder}/samples.json")


def _spread(available: int, count: int) -> list[int]:
    """Return evenly spaced indices: neighbours in a file are often alike."""
    if count > available:
        raise ValueError(f"images={count} was asked for; there are {available} test images.")
    return np.linspace(0, available - 1, count).round().astype(int).tolist()


@contextmanager
def _bar(prompts: Prompts, done: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar over all values, where there is a terminal."""
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
