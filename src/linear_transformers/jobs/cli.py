"""The command line: help at once, Hydra's composition, and complaints of one line."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from linear_transformers.config.composition import (
    about_composition,
    register_project,
    resolved_data,
    with_defaults_open,
)
from linear_transformers.config.folder import Configurations
from linear_transformers.runs.folder import CHECKPOINTS, find_checkpoint, folder_of
from linear_transformers.runs.sweeps import Outcome, Sweep

TRACEBACK = "HYDRA_FULL_ERROR"  # Hydra's own switch: set to 1, tracebacks are shown


class JobFailedError(Exception):
    """A job of a sweep could not go on, and has said why."""


class Program:
    """A job that is called from the command line, once or as the jobs of a sweep.

    Args:
        script: `__file__` of the program. `conf/` lies beside it; the primary configuration in
            it has the program's name, and ${project:} in configurations means that folder.
        job: The job as `module:function`, imported when it is to run: torch takes seconds.
    """

    def __init__(self, script: str, job: str):
        self.path = Path(script).resolve()
        self.job = job
        self.wants_traceback = os.environ.get(TRACEBACK) == "1"

    def __call__(self) -> None:
        """Read the command line, compose, run, and say in one line what could not be done."""
        arguments = sys.argv[1:]
        conf = Configurations.of(self.path, arguments)
        if {"-h", "--help"} & set(arguments):
            print(conf.help())
            return
        register_project(self.path.parent)
        self.composed = False
        self.sweep: Sweep | None = None
        run = hydra.main(
            version_base="1.3", config_path=str(conf.folders[0]), config_name=self.path.stem
        )
        self.typed = sys.argv
        try:
            conf.check_keys(arguments)
            self.found = use_of(self.path.stem, conf, arguments) if conf.uses else []
            words = [*with_defaults_open(arguments, conf.groups), *self.found]
            sys.argv = [self.typed[0], *words]  # where Hydra reads them
            with _traceback("1"):  # Hydra raises what it would print
                run(self._task)()
        except JobFailedError:
            sys.exit(1)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            if self.wants_traceback or self.composed:
                raise
            sys.exit(f"error: {about_composition(error, conf)}")
        finally:
            sys.argv = self.typed
            if self.sweep is not None:
                self.sweep.report()

    def _task(self, cfg: DictConfig) -> float | None:
        """What Hydra calls with each configuration it composed."""
        self.composed = True
        sys.argv = self.typed  # what a record, and a process that is started, have to say
        about = HydraConfig.get()
        outcome, message = None, "stopped before its end"
        try:
            outcome, message = self._attempt(cfg)
        finally:
            if about.mode == RunMode.MULTIRUN:
                self.sweep = self.sweep or Sweep(Path(about.sweep.dir), self.path.name)
                words = (word.removeprefix("++") for word in about.overrides.task)
                typed = [word for word in words if word not in self.found]
                self.sweep.add(typed, outcome, message)
        if outcome is not None:
            return outcome.objective
        if about.mode == RunMode.RUN:
            sys.exit(f"error: {message}")
        print(f"error: {message}", file=sys.stderr)
        raise JobFailedError  # an exit would end the sweep

    def _attempt(self, cfg: DictConfig) -> tuple[Outcome | None, str]:
        """Return what the job came to, or the one line that says why it came to nothing."""
        module, _, function = self.job.partition(":")
        try:
            with _traceback("1" if self.wants_traceback else None):  # for processes it starts
                config = resolved_data(cfg)
                return getattr(import_module(module), function)(self.path.stem, config), ""
        except (ValueError, OSError) as error:
            message = _for_people(error)
            if self.wants_traceback or message is None:
                raise
            return None, message


def use_of(program: str, conf: Configurations, arguments: Sequence[str]) -> list[str]:
    """Return the override that adds what a program takes for the task of its checkpoint.

    The run's config.yaml knows the task; a checkpoint away from its run has to be read.

    Raises:
        ValueError: No checkpoint is named, or there is none of that name, or it is damaged.
    """
    given = {key: value for key, _, value in (word.partition("=") for word in arguments)}
    if "ckpt" not in given:
        raise ValueError("ckpt has no value. Give it: ckpt=RUN_OR_FILE")
    runs = given.get("paths.runs", str(conf.folders[0].parent / "runs"))
    path = find_checkpoint(given["ckpt"].split(",")[0].strip("'\""), Path(runs))
    record = folder_of(path) / "config.yaml"
    if path.parent.name == CHECKPOINTS and record.is_file():
        config = yaml.safe_load(record.read_text())
    else:
        from linear_transformers.runs.checkpoint import read_checkpoint  # late: torch takes seconds

        config = read_checkpoint(path)["config"]
    match config:
        case {"task": {"_target_": str(target)}}:
            # A task's file has its class's name, in small letters.
            task = re.sub(r"(?<!^)(?=[A-Z])", "_", target.rpartition(".")[2]).lower()
            return [f"{program}={task}"] if task in conf.uses else []
    raise ValueError(f"{path} does not say what task it was trained for. Give another checkpoint.")


@contextmanager
def _traceback(value: str | None) -> Iterator[None]:
    """Set Hydra's switch for a while."""
    before = os.environ.pop(TRACEBACK, None)
    if value is not None:
        os.environ[TRACEBACK] = value
    try:
        yield
    finally:
        os.environ.pop(TRACEBACK, None)
        if before is not None:
            os.environ[TRACEBACK] = before


def _for_people(error: ValueError | OSError) -> str | None:
    """Return the one line that an error is to a user, or None where it is a bug of ours."""
    from linear_transformers.config.choices import is_ours  # late: pydantic takes a while

    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}." if error.filename else None
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    # We write for people; a ValueError of torch's, say, that we did not foresee is a bug.
    return str(error) if is_ours(traceback.tb_frame.f_globals.get("__name__", "")) else None
