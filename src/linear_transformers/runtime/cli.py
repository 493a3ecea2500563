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


def command(
    script: str, *, schema: type, usage: str, groups: tuple[str, ...] = ()
) -> Callable[[Callable[[DictConfig], Outcome]], Callable[[], None]]:
    """Make a job, a function of a validated configuration, into a program.

    Args:
        script: `__file__` of the program: `conf/` lies beside it, the primary config in it
            has the program's name, and ${project:} in configs means that folder.
        schema: Type of the primary config.
        usage: Printed by `--help`, above the choices of `groups`.
        groups: Config groups whose choices `--help` lists.
    """
    path = Path(script).resolve()
    conf = path.parent / "conf"
    keys = {field.name.rstrip("_") for field in fields(schema)}
    wants_traceback = os.environ.get(TRACEBACK) == "1"

    def decorate(job: Callable[[DictConfig], Outcome]) -> Callable[[], None]:
        def attempt(cfg: DictConfig) -> tuple[Outcome | None, str]:
            """What the job came to, or the one line that says why it came to nothing."""
            try:
                with _traceback("1" if wants_traceback else None):  # for processes it starts
                    return job(validated(cfg, schema)), ""
            except (ValueError, OSError) as error:
                message = _for_people(error)
                if wants_traceback or message is None:
                    raise
                return None, message

        def main() -> None:
            if {"-h", "--help"} & set(sys.argv[1:]):
                print(_help(usage, conf, groups))
                return
            register_project(path.parent)
            composed = False
            sweep: Sweep | None = None

            def task(cfg: DictConfig) -> float | None:
                nonlocal composed, sweep
                composed = True
                about = HydraConfig.get()
                outcome, message = None, "stopped before its end"
                try:
                    outcome, message = attempt(cfg)
                finally:
                    if about.mode == RunMode.MULTIRUN:
                        sweep = sweep or Sweep(Path(about.sweep.dir), path.name)
                        sweep.add(about.overrides.task, outcome, message)
                if outcome is not None:
                    return outcome.objective
                if about.mode == RunMode.RUN:
                    sys.exit(f"error: {message}")
                print(f"error: {message}", file=sys.stderr)
                raise JobFailedError  # an exit would end the sweep

            run = hydra.main(version_base="1.3", config_path=str(conf), config_name=path.stem)
            try:
                with _traceback("1"):  # Hydra raises what it would print
                    run(task)()
            except JobFailedError:
                sys.exit(1)
            except (HydraException, OmegaConfBaseException, ValueError) as error:
                if wants_traceback or composed:
                    raise
                sys.exit(f"error: {about_composition(error, conf, groups, keys)}")
            finally:
                if sweep is not None:
                    sweep.report()

        return main

    return decorate


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
