"""Refuse a configuration that says something it should not, in one line, before anything loads."""

from dataclasses import fields
from keyword import iskeyword
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from linear_transformers.runtime.complaints import first_line, unknown_key
from linear_transformers.runtime.schema import TARGETS, Node


def validated(cfg: DictConfig, schema: type) -> DictConfig:
    """The configuration with types checked and converted, and interpolations resolved.

    Raises:
        ValueError: A missing, unknown or ill-typed key, or a `_target_` that is not listed
            in `schema.TARGETS`; names the key, and the nearest one there is.
    """
    try:
        OmegaConf.resolve(cfg)
    except InterpolationResolutionError as error:
        raise ValueError(f"{first_line(error)}.") from error
    checked = DictConfig(_typed(cfg, schema, path=""))
    for field in fields(schema):
        value = checked[field.name]
        if field.type is Node:
            _check_names_a_class(value, field.name)
        elif field.type == dict[str, Node]:
            for name, node in value.items():
                _check_names_a_class(node, f"{field.name}.{name}")
    return checked


def plain(cfg: DictConfig) -> dict[str, Any]:
    """A validated configuration as data."""
    container = OmegaConf.to_container(cfg)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _check_names_a_class(node: DictConfig, path: str) -> None:
    if "_target_" not in node:
        raise ValueError(f"{path} names no class: {path}._target_ has no value.")


def _typed(node: DictConfig, schema: type | None, path: str) -> dict[str, Any]:
    """Plain data of a node and all below it, each checked against the schema it belongs to."""
    for key in node:
        if OmegaConf.is_missing(node, key):
            raise ValueError(f"{_join(path, key)} has no value. Give it: {_join(path, key)}=...")
    found: dict[str, Any] = {}
    for key, value in node.items():
        nested = isinstance(value, DictConfig)
        found[_field(key)] = _typed(value, None, _join(path, key)) if nested else value
    if "_target_" in found:
        schema = TARGETS.get(str(found["_target_"]))
        if schema is None:
            raise ValueError(
                f"{_join(path, '_target_')}={found['_target_']} is not among the classes that a "
                "configuration may name: they are listed in runtime/schema.py."
            )
    return found if schema is None else _merged(schema, found, path)


def _merged(schema: type, found: dict[str, Any], path: str) -> dict[str, Any]:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), found)
    except (ConfigKeyError, ConfigAttributeError) as error:
        known = (str(name) for name in OmegaConf.structured(schema))
        raise ValueError(unknown_key(_join(path, error.key), known)) from error
    except OmegaConfBaseException as error:
        where = _join(path, error.full_key) if error.full_key else path
        raise ValueError(f"{where}: {first_line(error)}.") from error
    missing = OmegaConf.missing_keys(merged)
    if missing:
        raise ValueError(f"{_join(path, min(missing))} has no value: the configuration lacks it.")
    assert isinstance(merged, DictConfig)
    return plain(merged)


def _field(key: Any) -> str:
    """The name a key has in the schema: a word of Python's, `continue` say, cannot be a field."""
    return f"{key}_" if iskeyword(str(key)) else str(key)


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
