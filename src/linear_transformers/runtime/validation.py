"""Refuse a configuration that says something it should not, in one line, before anything loads."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from linear_transformers.runtime.schema import TARGETS


def validated(cfg: DictConfig, schema: type) -> DictConfig:
    """The configuration with types checked and converted, and interpolations resolved.

    Raises:
        ValueError: A missing, unknown or ill-typed key, or a `_target_` that is not listed
            in `schema.TARGETS`; names the key, and the nearest one there is.
    """
    try:
        OmegaConf.resolve(cfg)
    except InterpolationResolutionError as error:
        raise ValueError(f"{error.full_key}: {_first_line(error)}.") from error
    return DictConfig(_typed(cfg, schema, path=""))


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint that names the closest choice, or all of them where none is close."""
    choices = sorted(choice for choice in choices if not choice.startswith("_"))
    close = get_close_matches(name, choices, n=1)
    return f"Did you mean {close[0]}?" if close else f"There are: {', '.join(choices)}."


def unknown_key(key: str, siblings: Iterable[str]) -> str:
    """What to say of a dotted key that does not exist, given those that stand beside it."""
    parent, _, name = key.rpartition(".")
    return f"{key} is not a key of {parent or 'the configuration'}. {nearest(name, siblings)}"


def _typed(node: DictConfig, schema: type | None, path: str) -> dict[str, Any]:
    """Plain data of a node and all below it, each checked against the schema it belongs to."""
    for key in node:
        if OmegaConf.is_missing(node, key):
            raise ValueError(f"{_join(path, key)} has no value. Give it: {_join(path, key)}=...")
    plain = {
        str(key): _typed(value, None, _join(path, key)) if isinstance(value, DictConfig) else value
        for key, value in node.items()
    }
    if "_target_" in plain:
        schema = TARGETS.get(str(plain["_target_"]))
        if schema is None:
            raise ValueError(
                f"{_join(path, '_target_')}={plain['_target_']} is not among the classes that a "
                "configuration may name: they are listed in runtime/schema.py."
            )
    return plain if schema is None else _merged(schema, plain, path)


def _merged(schema: type, plain: dict[str, Any], path: str) -> dict[str, Any]:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), plain)
    except (ConfigKeyError, ConfigAttributeError) as error:
        known = (str(name) for name in OmegaConf.structured(schema))
        raise ValueError(unknown_key(_join(path, error.key), known)) from error
    except OmegaConfBaseException as error:
        where = _join(path, error.full_key) if error.full_key else path
        raise ValueError(f"{where}: {_first_line(error)}.") from error
    missing = OmegaConf.missing_keys(merged)
    if missing:
        raise ValueError(f"{_join(path, min(missing))} has no value: the configuration lacks it.")
    container = OmegaConf.to_container(merged)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
