"""The command line: help at once, Hydra's composition, and complaints of one line."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

import linear_transformers
from linear_transformers.runtime.complaints import about_composition, choices
from linear_transformers.runtime.project import register_project
from linear_transformers.runtime.sweeps import Outcome, Sweep
from linear_transformers.runtime.validation import validated

TRACEBACK = "HYDRA_FULL_ERROR"  # Hydra's own switch: set to 1, tracebacks are shown
OUR_CODE = str(Path(linear_transformers.__file__).parent)


class JobFailedError(Exception):
    """A job of a sweep could not go on, and has said why."""


Job = Callable[[DictConfig], Outcome]


def command(
    script: str, *, schema: type, usage: str, groups: tuple[str, ...] = ()
) -> Callable[[Job], "Program"]:
    """Make a job, a function of a validated configuration, into a program.

    Args:
        script: `__file__` of the program: `conf/` lies beside it, the primary config in it
            has the program's name, and ${project:} in configs means that folder.
        schema: Type of the primary config.
        usage: Printed by `--help`, above the choices of `groups`.
        groups: Config groups whose choices `--help` lists.
    """
    return lambda job: Program(job, Path(script).resolve(), schema, usage, groups)


class Program:
    """A job that is called from the command line, once or as the jobs of a sweep."""

    def __init__(self, job: Job, path: Path, schema: type, usage: str, groups: tuple[str, ...]):
        self.job = job
        self.path = path
        self.conf = path.parent / "conf"
        self.schema = schema
        self.usage = usage
        self.groups = groups
        self.wants_traceback = os.environ.get(TRACEBACK) == "1"

    def __call__(self) -> None:
        """Read the command line, compose, run, and say in one line what could not be done."""
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(_help(self.usage, self.conf, self.groups))
            return
        register_project(self.path.parent)
        self.composed = False
        self.sweep: Sweep | None = None
        run = hydra.main(version_base="1.3", config_path=str(self.conf), config_name=self.path.stem)
        try:
            with _traceback("1"):  # Hydra raises what it would print
                run(self._task)()
        except JobFailedError:
            sys.exit(1)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            if self.wants_traceback or self.composed:
                raise
            keys = {field.name.rstrip("_") for field in fields(self.schema)}
            sys.exit(f"error: {about_composition(error, self.conf, self.groups, keys)}")
        finally:
            if self.sweep is not None:
                self.sweep.report()

    def _task(self, cfg: DictConfig) -> float | None:
        """What Hydra calls with each configuration it composed."""
        self.composed = True
        about = HydraConfig.get()
        outcome, message = None, "stopped before its end"
        try:
            outcome, message = self._attempt(cfg)
        finally:
            if about.mode == RunMode.MULTIRUN:
                self.sweep = self.sweep or Sweep(Path(about.sweep.dir), self.path.name)
                self.sweep.add(about.overrides.task, outcome, message)
        if outcome is not None:
            return outcome.objective
        if about.mode == RunMode.RUN:
            sys.exit(f"error: {message}")
        print(f"error: {message}", file=sys.stderr)
        raise JobFailedError  # an exit would end the sweep

    def _attempt(self, cfg: DictConfig) -> tuple[Outcome | None, str]:
        """What the job came to, or the one line that says why it came to nothing."""
        try:
            with _traceback("1" if self.wants_traceback else None):  # for processes it starts
                return self.job(validated(cfg, self.schema)), ""
        except (ValueError, OSError) as error:
            message = _for_people(error)
            if self.wants_traceback or message is None:
                raise
            return None, message


def _help(usage: str, conf: Path, groups: tuple[str, ...]) -> str:
    lines = [f"  {group:<20} {', '.join(choices(conf, group))}" for group in groups]
    return "\n".join([usage.strip(), "", *lines]).rstrip()


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
    """The one line that an error is to a user, or None where it is a bug of ours."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}." if error.filename else None
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    # We write for people; a ValueError of torch's, say, that we did not foresee is a bug.
    ours = traceback.tb_frame.f_code.co_filename.startswith(OUR_CODE)
    return str(error) if ours else None
