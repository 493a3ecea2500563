"""What to say when something can be mended: one line, naming what was asked and what there is."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException


def choices(conf: Path, group: str) -> list[str]:
    """The choices of a config group. Only experiments are sorted into folders."""
    folder = conf / group
    files = folder.rglob("*.yaml") if group == "experiment" else folder.glob("*.yaml")
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in files)


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint that names the closest choice, or all of them where none is close."""
    known = sorted({name for name in names if not name.startswith("_")})
    close = get_close_matches(name, known, n=1)
    if close:
        return f"Did you mean {close[0]}?"
    return f"There are: {', '.join(known)}." if known else "It takes none."


def unknown_key(key: str, siblings: Iterable[str]) -> str:
    """What to say of a dotted key that does not exist, given those that stand beside it."""
    parent, _, name = key.rpartition(".")
    return f"{key} is not a key of {parent or 'the configuration'}. {nearest(name, siblings)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def about_composition(error: Exception, conf: Path, groups: tuple[str, ...], keys: set[str]) -> str:
    """What to say when Hydra cannot compose a configuration.

    Args:
        error: What Hydra raised.
        conf: The folder of configs.
        groups: The groups that can be chosen from.
        keys: The top-level keys.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
        file = str(error.missing_cfg_file)
        above = [group for group in groups if file.startswith(f"{group}/")]
        group = max(above, key=len, default=file.rpartition("/")[0])
        name = file.removeprefix(f"{group}/")
        return f"{group}={name} is not a choice. {nearest(name, choices(conf, group))}"
    first = first_line(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} is not KEY=VALUE. Values with = [ {{ or , go in quotes."
    if not isinstance(error, ConfigCompositionException) or "'" not in first:
        return " ".join(str(error).split())
    key = first.split("'")[1].removeprefix("override ").partition(":")[0]
    top = key.partition(".")[0]
    if top in groups and top not in keys:
        return f"{top} is not part of this configuration: what was chosen above it has none."
    if top not in keys:
        return unknown_key(top, keys | set(groups))
    cause = error.__cause__
    if not isinstance(cause, OmegaConfBaseException):
        return f"{key}: {first}."
    siblings = cause.parent_node if isinstance(cause.parent_node, DictConfig) else {}
    if cause.key in siblings:
        return f"{key}: {first_line(cause)}."
    parts = key.split(".")
    wrong = parts.index(str(cause.key)) if str(cause.key) in parts else len(parts) - 1
    return unknown_key(".".join(parts[: wrong + 1]), map(str, siblings))
