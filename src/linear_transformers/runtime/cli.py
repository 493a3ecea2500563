"""The command line: help at once, Hydra's composition, and complaints of one line."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import linear_transformers
from linear_transformers.runtime.validation import nearest, unknown_key, validated

TRACEBACK = "HYDRA_FULL_ERROR"  # Hydra's own switch: set to 1, tracebacks are shown
OUR_CODE = str(Path(linear_transformers.__file__).parent)


def command(
    script: str, *, schema: type, usage: str, groups: tuple[str, ...] = ()
) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """Make a job, a function of a validated configuration, into a program.

    Args:
        script: `__file__` of the program: `conf/` lies beside it, the primary config in it
            has the program's name, and relative paths in the config start there.
        schema: Type of the primary config.
        usage: Printed by `--help`, above the choices of `groups`.
        groups: Config groups whose choices `--help` lists.
    """
    path = Path(script).resolve()
    conf = path.parent / "conf"

    def decorate(job: Callable[[DictConfig], Any]) -> Callable[[], None]:
        def task(cfg: DictConfig) -> Any:
            with _explained(conf, schema):
                return job(validated(cfg, schema))

        def main() -> None:
            if {"-h", "--help"} & set(sys.argv[1:]):
                print(_help(usage, conf, groups))
                return
            register_project(path.parent)
            with _explained(conf, schema), _raised_by_hydra():
                hydra.main(version_base="1.3", config_path=str(conf), config_name=path.stem)(task)()

        return main

    return decorate


def register_project(folder: Path) -> None:
    """Let ${project:} in a config mean this folder, so that no path depends on where one stands."""
    OmegaConf.register_new_resolver("project", lambda: str(folder), replace=True)


def _help(usage: str, conf: Path, groups: tuple[str, ...]) -> str:
    choices = [f"  {group:<20} {', '.join(_choices(conf, group))}" for group in groups]
    return "\n".join([usage.strip(), "", *choices]).rstrip()


def _choices(conf: Path, group: str) -> list[str]:
    """The choices of a group. Only experiments are sorted into folders; others are groups."""
    folder = conf / group
    files = folder.rglob("*.yaml") if group == "experiment" else folder.glob("*.yaml")
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in files)


@contextmanager
def _raised_by_hydra() -> Iterator[None]:
    """Have Hydra raise what it would print, so that `_explained` says it in one line."""
    before = os.environ.get(TRACEBACK)
    os.environ[TRACEBACK] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[TRACEBACK]
        else:
            os.environ[TRACEBACK] = before


@contextmanager
def _explained(conf: Path, schema: type) -> Iterator[None]:
    """Turn what a user can mend into one line and exit code 1; let our own bugs show."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        message = _about_composition(error, conf, schema)
        if _wants_traceback():
            raise
    except ValueError as error:
        if _wants_traceback() or not _raised_by_us(error):
            raise
        message = str(error)
    else:
        return
    sys.exit(f"error: {message}")


def _wants_traceback() -> bool:
    # Read from the process's start: `_raised_by_hydra` sets the variable for Hydra's sake.
    return _STARTED_WITH_TRACEBACK


_STARTED_WITH_TRACEBACK = os.environ.get(TRACEBACK) == "1"


def _raised_by_us(error: BaseException) -> bool:
    """Whether the innermost frame is this package's: a ValueError of torch's is a bug of ours."""
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename.startswith(OUR_CODE)


def _about_composition(error: Exception, conf: Path, schema: type) -> str:
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={name} is not a choice. {nearest(name, map(str, error.options))}"
    first = str(error).splitlines()[0]
    if not isinstance(error, ConfigCompositionException) or "'" not in first:
        return " ".join(str(error).split())
    key, cause = first.split("'")[1], error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        siblings = cause.parent_node if isinstance(cause.parent_node, DictConfig) else ()
        if cause.key in siblings:
            return f"{key}: {str(cause).splitlines()[0]}"
        return unknown_key(key, map(str, siblings))
    if (conf / key).is_dir():
        return f"{key} is not part of this configuration: what was chosen above it has none."
    groups = (path.name for path in conf.iterdir())
    return unknown_key(key, {*groups, *(field.name for field in fields(schema))})
