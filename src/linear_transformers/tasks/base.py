"""The plug: what a task brings, and all that training and the programs know of one.

A task is the shape of its data, a model, and what is done with both. It knows neither Lightning
nor Hydra: `training` trains any task, `jobs` run any. To add one, write a subclass of `Task`, its
data set, and their files in `conf/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from linear_transformers.config.choices import Choice
from linear_transformers.data.base import Shape
from linear_transformers.ops.pieces import Place
from linear_transformers.ops.precision import exact_dtype
from linear_transformers.runs.checkpoint import history
from linear_transformers.runs.folder import claim_folder
from linear_transformers.runs.outcomes import Outcome

Row = dict[str, Any]
# Sums over a batch, or over a whole split: they add up over batches and devices.
Statistics = dict[str, Tensor]


class Figure(NamedTuple):
    """What models are compared by.

    Attributes:
        name: The metric, logged as `val/<name>` and `test/<name>`.
        unit: What it is counted in.
        best: Which end of it is good.
    """

    name: str
    unit: str
    best: Literal["min", "max"] = "min"


class Evaluation(NamedTuple):
    """How a model does on a split.

    Attributes:
        figures: The metrics by name.
        statistics: The sums that they were computed from.
    """

    figures: dict[str, float]
    statistics: Statistics


@dataclass(frozen=True)
class Loss:
    """A loss as a sum. What is trained is its mean over the global batch, on all devices and over
    all batches whose gradients are accumulated: a mean of their means would weigh symbols by the
    batch that they happen to be in.

    Attributes:
        total: The sum over a batch, which is differentiated.
        count: The number of what it is a sum over.
    """

    total: Tensor
    count: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean over the batch."""
        return self.total / self.count


def count(x: Tensor) -> Tensor:
    """Return the number of elements, on their device."""
    return torch.full((), x.numel(), device=x.device)


def total(x: Tensor) -> Tensor:
    """Return a sum that forgets nothing however many batches add to it."""
    return x.detach().sum(dtype=exact_dtype(x.device))


class Watcher:
    """Who can be shown results: a tracker. What it does not override, it does not show."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Show numbers."""

    def log_summary(self, figures: dict[str, Any], step: int) -> None:
        """Show figures of the whole run, which belong to no step."""
        self.log_metrics(figures, step)

    def log_picture(self, name: str, path: Path, step: int) -> None:
        """Show a PNG or GIF file."""

    def log_audio(self, name: str, path: Path, caption: str, step: int) -> None:
        """Show a recording."""

    def log_table(self, name: str, rows: Sequence[Row], step: int) -> None:
        """Show rows that have the same keys."""


class Output:
    """Where a task puts what it makes: a folder of its own, and whoever watches.

    Args:
        place: The folder. Where it is taken, it gets a number; it is made when it is needed.
        watchers: Who is shown pictures, recordings, tables and metrics.
        step: The training step that they belong to.
        prefix: What the names of files begin with.
    """

    def __init__(
        self, place: Path, watchers: Sequence[Watcher] = (), *, step: int = 0, prefix: str = ""
    ):
        self._place = place
        self.watchers = watchers
        self.step = step
        self.prefix = prefix

    @cached_property
    def folder(self) -> Path:
        """The folder, new."""
        return claim_folder(self._place, numbered=True)

    def file(self, name: str) -> Path:
        """Return the path of a new file."""
        return self.folder / f"{self.prefix}{name}"

    def metrics(self, metrics: Mapping[str, Any]) -> None:
        """Show numbers."""
        for watcher in self.watchers:
            watcher.log_metrics(dict(metrics), step=self.step)

    def summary(self, figures: Mapping[str, Any]) -> None:
        """Show figures of the whole run."""
        for watcher in self.watchers:
            watcher.log_summary(dict(figures), self.step)

    def picture(self, name: str, path: Path) -> None:
        """Show a PNG or GIF file."""
        for watcher in self.watchers:
            watcher.log_picture(name, path, self.step)

    def audio(self, name: str, path: Path, caption: str) -> None:
        """Show a recording."""
        for watcher in self.watchers:
            watcher.log_audio(name, path, caption, self.step)

    def table(self, name: str, rows: Sequence[Row]) -> None:
        """Show rows of one form, if there are any."""
        for watcher in self.watchers if rows else ():
            watcher.log_table(name, rows, self.step)


# Opens the watchers of a job for as long as the context lasts, given the folder of what it makes.
Watch = Callable[[Path], AbstractContextManager[Output]]


@dataclass(frozen=True, eq=False)
class Trained:
    """A task out of a checkpoint, its model in `eval()` mode.

    Attributes:
        path: The checkpoint.
        folder: The folder of what is made of it: that of the run, mostly. See `home_of`.
        config: The configuration of the run that trained it, as plain data.
        weights: Which weights were asked for: `ema`, `raw`, or None for those that were tested.
        step: The number of steps that they were trained for; None where a run tests others than
            these, or it is unknown.
        task: The task.
        data: Makes the data that it was trained on; options can be replaced.
    """

    path: Path
    folder: Path
    config: dict[str, Any] = field(repr=False)
    weights: str | None
    step: int | None
    task: Any = field(repr=False)
    data: Choice[Any] = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the run, or of the exported model."""
        return self.folder.resolve().name

    @cached_property
    def history(self) -> dict[str, Any]:
        """How it was trained: see `runs.checkpoint.history`."""
        return history(self.path, self.step)


TrainedT = TypeVar("TrainedT", bound=Trained)


class Task(ABC):
    """What a model is trained for.

    Attributes:
        shape_class: The class of its data's shapes.
        trained_class: What is loaded from a checkpoint: a `Trained` with methods of the task.
        uses: What programs can do with a trained model, by the program's name.
        figures: What models are compared by; the first one decides.
        shape: What the model knows of its data.
        model: What is trained. `model.example()` is an input of usual size.

    Args:
        shape: The shape of the data.
        model: The model.
    """

    shape_class: ClassVar[type[Shape]]
    trained_class: ClassVar[type[Trained]] = Trained
    uses: ClassVar[Mapping[str, "type[Use[Any]]"]] = {}
    figures: Sequence[Figure]

    def __init__(self, shape: Any, model: nn.Module):
        self.shape = shape
        self.model: Any = model

    @property
    def figure(self) -> Figure:
        """What decides which model is best."""
        return self.figures[0]

    @property
    @abstractmethod
    def description(self) -> str:
        """The model in a few words, for a run's log."""

    @property
    def in_words(self) -> str:
        """The model in a few words, and its size."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        return f"{self.description}, {count / 1e6:.2f} M parameters"

    def kernel_on(self, device: torch.device) -> str:
        """Return what computes attention on a device, for a run's log.

        Raises:
            ValueError: What was asked for cannot run there.
        """
        return "torch"

    def cautions(self) -> list[str]:
        """Return what a user must know of the model's figures."""
        return []

    def prepare(self, data: Any) -> list[str]:
        """Fit model and data to each other before training.

        Returns:
            What a run has to say of its data, in lines.
        """
        return data.notes()

    def cut(self, place: Place) -> None:
        """Compute losses and statistics of a piece of each sequence, of which other devices have
        the rest.

        Args:
            place: The place of this device's pieces.

        Raises:
            ValueError: The task's sequences, or its model's, cannot be cut.
        """
        raise ValueError(
            f"trainer=sequence_parallel cuts sequences of values, and {type(self).__name__} is of "
            "others. Use trainer=ddp, which divides batches."
        )

    @property
    def carried(self) -> list[Any] | None:
        """What goes on from one training batch to the next, if anything does: tensors, with a row
        for each sequence of a batch, and plain values. Checkpoints hold it."""
        return None

    @carried.setter
    def carried(self, parts: list[Any]) -> None:
        raise ValueError(f"{type(self).__name__} carries nothing from batch to batch.")

    @abstractmethod
    def loss(self, batch: Any) -> Loss:
        """Return the loss of a training batch."""

    def progress(self, mean: Tensor) -> dict[str, Tensor]:
        """Return what to log of the mean loss, as `train/<name>`."""
        return {"loss": mean}

    @abstractmethod
    def statistics(self, batch: Any) -> Statistics:
        """Return the sums over a batch that `judge` needs."""

    @abstractmethod
    def judge(self, statistics: Statistics) -> dict[str, Tensor]:
        """Return the metrics of a split, by name, from its sums."""

    @abstractmethod
    def positions_in(self, batch: Any) -> int | Tensor:
        """Return the number of positions of a batch, which rates of training count."""

    def trial(self, model: Any) -> tuple[Tensor, int]:
        """Run a model on an input of usual size, to count its arithmetic.

        Args:
            model: The model, or a copy of it on another device.

        Returns:
            What the loss is computed from, and the number of positions of the input.
        """
        example = model.example()
        return model(*example), example[0].shape[1]

    def show(self, data: Any, output: Output, *, n: int, seed: int) -> None:  # noqa: B027
        """Show what the model makes, at a validation.

        Args:
            data: The data.
            output: Where to.
            n: The number of examples.
            seed: The seed of what is drawn, the same at each validation.
        """

    @abstractmethod
    def report(self, data: Any, evaluation: Evaluation, output: Output) -> list[str]:
        """Print and show how a finished run did on its test data.

        Returns:
            Where to look, in lines.
        """

    def next_call(self, output: Output) -> tuple[str, ...]:
        """Return what to call after training: a program, and its words besides `ckpt`.

        Args:
            output: Where the report was put.

        Returns:
            The words; none where no program uses a model of this task.
        """
        return tuple(self.uses)[:1]


class Use(ABC, Generic[TrainedT]):
    """What a program does with a trained task: a dataclass, whose fields are the options.

    Attributes:
        needs: The words that a call needs besides the checkpoint's, as one would type them.
    """

    needs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, trained: TrainedT, watch: Watch) -> Outcome:
        """Do it.

        Raises:
            ValueError: The checkpoint cannot serve what was asked for.
        """
