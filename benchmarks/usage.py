"""How a benchmark is called, and how it says that it cannot do what was asked."""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hydra.errors import HydraException

from linear_transformers.config.folder import Configurations
from linear_transformers.jobs.composition import about_composition
from linear_transformers.runs.folder import find_checkpoint
from linear_transformers.tasks.base import Trained
from linear_transformers.tasks.loading import load, usable

Kind = TypeVar("Kind", bound=Trained)


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return a parser of a program's arguments.

    Args:
        about: The program's docstring, which its help begins with.
    """
    lines = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=about, formatter_class=lines)


def count(text: str) -> int:
    """Return an argument that is a number of things: one at least."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def usable_core(text: str) -> int:
    """Return an argument that is the number of a core of this machine."""
    if int(text) not in range(os.cpu_count() or 1):
        raise argparse.ArgumentTypeError(
            f"there is no core {text}: this machine has 0 to {(os.cpu_count() or 1) - 1}"
        )
    return int(text)


def usable_device(name: str) -> str:
    """Return an argument that is the name of a device that can be used here, or `auto`."""
    try:
        return str(usable(name, "--device"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@contextmanager
def refusing() -> Iterator[None]:
    """Say in one line what is wrong with what was asked for, instead of a traceback."""
    try:
        yield
    except (HydraException, ValueError) as error:
        told = about_composition(error, Configurations.of("train"))
        raise SystemExit(f"error: {told}") from error


def trained_models(
    names: Sequence[str], runs: Path, kind: type[Kind], what: str, **options: Any
) -> list[Kind]:
    """Return trained models of one kind.

    Args:
        names: Runs, checkpoints or exported models.
        runs: The folder of all runs.
        kind: What they have to be.
        what: What models of this kind are of, for the message.
        options: See `load`.

    Raises:
        SystemExit: One is not there, or of another kind.
    """
    models = []
    for name in names:
        with refusing():
            model = load(find_checkpoint(name, runs), **{"device": "cpu", **options})
        if not isinstance(model, kind):
            raise SystemExit(f"error: {name} is not a model of {what}; give one that is.")
        models.append(model)
    return models
