"""Refuse a configuration that says something it should not, in one line, before anything loads."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from linear_transformers.runtime.schema import TARGETS


def validated(cfg: DictConfig, schema: type) -> DictConfig:
    """The configuration with its types checked and interpolations resolved.

    Raises:
        ValueError: A missing, unknown or ill-typed key, or a `_target_` that is not listed
            in `schema.TARGETS`; names the key, and the nearest one there is.
    """
    try:
        OmegaConf.resolve(cfg)
    except InterpolationResolutionError as error:
        raise ValueError(f"{error.full_key}: {_first_line(error)}") from error
    checked = _merged(schema, cfg, path="")
    _check_targets(checked, path="")
    return checked


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint that names the closest choice, or all of them where none is close."""
    choices = sorted(choice for choice in choices if not choice.startswith("_"))
    close = get_close_matches(name, choices, n=1)
    return f"Did you mean {close[0]}?" if close else f"There are: {', '.join(choices)}."


def unknown_key(key: str, siblings: Iterable[str]) -> str:
    """What to say of a dotted key that does not exist, given those that stand beside it."""
    parent, _, name = key.rpartition(".")
    return f"{key} is not a key of {parent or 'the configuration'}. {nearest(name, siblings)}"


def _check_targets(node: Any, path: str) -> None:
    if isinstance(node, ListConfig):
        for i, child in enumerate(node):
            _check_targets(child, f"{path}[{i}]")
    if not isinstance(node, DictConfig):
        return
    _check_complete(node, path)
    for key in node:
        _check_targets(node[key], _join(path, key))
    if "_target_" in node:
        target = node["_target_"]
        if target not in TARGETS:
            raise ValueError(
                f"{_join(path, '_target_')}={target} is not among the classes that a "
                "configuration may name: they are listed in runtime/schema.py."
            )
        _merged(TARGETS[target], node, path)


def _merged(schema: type, node: DictConfig, path: str) -> DictConfig:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), node)
    except (ConfigKeyError, ConfigAttributeError) as error:
        known = (str(name) for name in OmegaConf.structured(schema))
        raise ValueError(unknown_key(_join(path, error.key), known)) from error
    except OmegaConfBaseException as error:
        where = _join(path, str(error.full_key)) if error.full_key else path
        raise ValueError(f"{where}: {_first_line(error)}.") from error
    assert isinstance(merged, DictConfig)
    _check_complete(merged, path)
    return merged


def _check_complete(node: DictConfig, path: str) -> None:
    for key in node:
        if OmegaConf.is_missing(node, key):
            raise ValueError(f"{_join(path, key)} has no value. Give it: {_join(path, key)}=...")


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")

