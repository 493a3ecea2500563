"""Hydra's part: composing a configuration out of `conf/` and the command line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString, RangeSweep
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from omegaconf.resolvers import oc

from linear_transformers.calls import call_with
from linear_transformers.config.folder import OF_FILES, Configurations
from linear_transformers.config.messages import (
    counted,
    first_line,
    in_quotes,
    is_plain,
    nearest,
    unknown_key,
)

# Plugins of Hydra's, and the extras of this project that bring them.
PLUGINS = {
    "hydra/launcher=joblib": "joblib",
    "hydra/launcher=submitit_local": "submitit",
    "hydra/launcher=submitit_slurm": "submitit",
    "hydra/sweeper=optuna": "optuna",
}
SWEEPER = "hydra/sweeper="
BASIC_SWEEPER = "BasicSweeper"  # its jobs are known beforehand
NAMES = ("run_id", "group", "resume", "init_from", "ckpt")
# Without these, a checkpoint could be neither continued nor used.
REBUILT = ("model", "task", "data", "optimizer", "scheduler")


def register_project(folder: Path) -> None:
    """Let ${project:} in a configuration mean this folder, wherever one stands."""
    OmegaConf.register_new_resolver("project", lambda: str(folder), replace=True)


def with_defaults_open(overrides: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Return overrides that may set what no YAML mentions: an option whose default its class
    declares. What no class declares either is refused by `checked`.

    Args:
        overrides: Words of a command line.
        groups: The groups, in whose nodes classes are named.
    """
    option = re.compile(rf"({'|'.join({group.partition('/')[0] for group in groups})})\.[\w.]+=")
    return [f"++{word}" if option.match(word) else word for word in overrides]


def composed(conf: Configurations, *overrides: str) -> dict[str, Any]:
    """Return the configuration that a program would run with, given a command line.

    Args:
        conf: The program's files.
        overrides: The words of the command line.

    Raises:
        ValueError: See `resolved_data`.
    """
    register_project(conf.folders[0].parent)
    with initialize_config_dir(str(conf.folders[0]), version_base="1.3"):
        config = resolved_data(
            compose(conf.program, overrides=with_defaults_open(overrides, conf.groups))
        )
    return {key: value for key, value in config.items() if key not in OF_FILES}


def composed_value(key: str, conf: Configurations, words: Sequence[str]) -> Any:
    """Return the value that a key has once words of a command line are composed; None is a key that
    is not there.

    Args:
        key: The dotted key.
        conf: The program's files.
        words: The words that may set it; sweeps among them are left out.

    Raises:
        ValueError: An interpolation leads nowhere.
        HydraException: The words cannot be composed.
    """
    further = [in_quotes(f"file://{folder.absolute()}") for folder in conf.folders[1:]]
    search = [f"hydra.searchpath=[{','.join(further)}]"] if further else []
    options = [word for word in words if "=" in word]
    single = [word for word in options if not _parsed(word).is_sweep_override()]
    with initialize_config_dir(str(conf.folders[0]), version_base="1.3"):
        cfg = compose(conf.program, overrides=[*search, *single], return_hydra_config=True)
    try:
        return OmegaConf.select(cfg, key)
    except InterpolationResolutionError as error:
        raise ValueError(_unresolved(error)) from error


def resolved_data(cfg: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain data.

    Raises:
        ValueError: An interpolation leads nowhere, or a key has no value.
    """
    try:
        data = OmegaConf.to_container(cfg, resolve=True)
    except InterpolationResolutionError as error:
        raise ValueError(_unresolved(error)) from error
    assert isinstance(data, dict)
    if missing := OmegaConf.missing_keys(cfg):
        raise ValueError(f"{min(missing)} has no value. Give it: {min(missing)}=...")
    return {str(key): value for key, value in data.items()}


def _unresolved(error: InterpolationResolutionError) -> str:
    """Return which key has an interpolation that leads nowhere, and what to do."""
    return f"{error.full_key}: {first_line(error)}. Give it a value, or make another choice."


def jobs_of(conf: Configurations, words: Sequence[str]) -> tuple[int, bool]:
    """Return the number of jobs of a multirun, as far as its command line and its experiment tell,
    and whether they are proposed by what those before came to.

    Args:
        conf: The program's files.
        words: The words of the command line.

    Raises:
        ValueError: See `composed_value`.
        HydraException: See `composed_value`.
    """
    chosen = [word for word in words if word.lstrip("+").startswith(("experiment=", SWEEPER))]
    sweeper = composed_value("hydra.sweeper", conf, chosen) if chosen else None
    if sweeper is None:
        return num_jobs(words), False
    proposed = [
        f"{key}={value}"
        for key, value in (sweeper.get("params") or {}).items()
        if not values_of(key, words)
    ]
    return num_jobs([*proposed, *words]), not sweeper._target_.endswith(BASIC_SWEEPER)


def check_sweep(words: Sequence[str], *, multirun: bool) -> None:
    """Refuse what is for several jobs where there is to be one, and the reverse.

    Args:
        words: The words of the command line.
        multirun: Whether they are for several jobs.

    Raises:
        ValueError: There is a list of values, or an option of multiruns; or one run's name for
            several jobs.
    """
    if multirun:
        _check_multirun(words)
        return
    of_several = ("sweep.", SWEEPER, "hydra/launcher=", "hydra.sweep", "hydra.mode=MULTI")
    if own := [word for word in words if word.lstrip("+").startswith(of_several)]:
        raise ValueError(f"{own[0]} is for several jobs: add -m.")
    for word in words:
        try:
            sweeps = "=" in word and _parsed(word).is_sweep_override()
        except OverrideParseException:
            continue  # Hydra will say so
        if sweeps:
            raise ValueError(
                f"{word} names several values: -m runs them one after the other, [a,b] is a list."
            )


def _check_multirun(words: Sequence[str]) -> None:
    """Refuse one run's name for several jobs, and options of multiruns that cannot be."""
    names = [word for word in words if word.startswith("run_id=") and "${" not in word]
    count = len({*_values(names[-1])} if names else ())
    if names and count < (jobs := num_jobs(words)):
        raise ValueError(
            f"{names[-1]} names {counted(count, 'run')}, and these are {jobs} jobs. "
            "Leave it out, or make it differ: run_id='a-${seed}'."
        )
    for word in words:
        key, _, storage = word.lstrip("+").partition("=")
        if key == "hydra.sweep.dir" and not storage:
            raise ValueError(f"{key} is empty. Give it a folder: {key}=DIR")
        if key == "hydra.sweeper.direction" and storage != "minimize":
            raise ValueError(
                f"{word}: a search minimises, and what is best at its most is negated for it. "
                "Leave it out."
            )
        if key != "hydra.sweeper.storage" or storage == "null":
            continue
        if "://" not in storage:
            raise ValueError(f"{word} is no database. Write {key}=sqlite:///search.db.")
        file = Path(storage.partition(":///")[2])
        if storage.startswith("sqlite:") and not file.parent.is_dir():
            raise ValueError(f"{word}: there is no folder {file.parent}.")


def with_names(words: Sequence[str]) -> list[str]:
    """Return words of a command line, of which names are in quotes where Hydra would read numbers:
    in run_id=12e4567, infinity."""

    def quoted(key: str, name: str) -> str:
        plain = re.fullmatch(r"[\w.+-]+", name)
        read = _parsed(f"{key}={name}").value() if plain else None
        return name if read is None or str(read) == name else in_quotes(name)

    parts = ((word, *word.partition("=")) for word in words)
    return [
        f"{key}={','.join(quoted(key, name) for name in value.split(','))}"
        if key in NAMES
        else word
        for word, key, _, value in parts
    ]


def value_of(key: str, arguments: Sequence[str]) -> str | None:
    """Return the value that a command line gives a key, of a sweep the first one."""
    return next(iter(values_of(key, arguments)), None)


def values_of(key: str, arguments: Sequence[str]) -> list[str]:
    """Return the values that a command line gives a key: several for a sweep."""
    words = [word.lstrip("+") for word in arguments]
    words = [word for word in words if word.startswith(f"{key}=")]
    return _values(words[-1]) if words else []


def of_each_job(word: str) -> str:
    """Return a word of a multirun, so that a choice within a group is each job's alone. Hydra would
    look for it in the first configuration, too, which has none of the models that are swept."""
    key, _, value = word.partition("=")
    inner = "/" in key and not key.lstrip("+").startswith("hydra/") and is_plain(value)
    return f"{key}=choice({value})" if inner else word


def num_jobs(words: Sequence[str]) -> int:
    """Return the number of jobs of a multirun, as far as its command line tells."""
    parsed = [_parsed(word) for word in words if "=" in word]
    # A glob is of files, and an interval is a sweeper's to draw from.
    listed = [x for x in parsed if isinstance(x.value(), ChoiceSweep | RangeSweep)]
    return prod(len([*override.sweep_iterator()]) for override in listed)


def _values(word: str) -> list[str]:
    """Return the values that a word gives its key: several for a sweep."""
    parsed = _parsed(word)
    values = parsed.sweep_iterator() if parsed.is_sweep_override() else [parsed.value()]
    texts = (value.text if isinstance(value, QuotedString) else value for value in values)
    return ["null" if text is None else str(text) for text in texts]


def _parsed(word: str) -> Override:
    (parsed,) = OverridesParser.create().parse_overrides([word])  # one by itself raises others
    return parsed


def from_environment(cfg: DictConfig) -> dict[str, str]:
    """Return what to write, instead of their values, where an environment variable was read.

    What a model is rebuilt from is written as it was used.

    Returns:
        By dotted key: `<oc.env:NAME>` stands for the variable.
    """
    try:
        OmegaConf.register_new_resolver("oc.env", lambda *x: f"<oc.env:{x[0]}>", replace=True)
        OmegaConf.register_new_resolver("oc.decode", lambda text: text, replace=True)
        hidden = OmegaConf.to_container(cfg, resolve=True)
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        OmegaConf.register_new_resolver("oc.decode", oc.decode, replace=True)
    return {
        path: value
        for path, value in leaves(hidden, "")
        if isinstance(value, str) and "<oc.env:" in value and path.split(".")[0] not in REBUILT
    }


def leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield nested values by their dotted keys, below a path."""
    if not isinstance(node, dict | list):
        yield path, node
        return
    parts = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in parts:
        yield from leaves(value, f"{path}.{key}" if path else str(key))


def without(config: dict[str, Any], hidden: Mapping[str, str]) -> dict[str, Any]:
    """Return a configuration as it may be saved and logged.

    Args:
        config: The configuration, as plain data.
        hidden: See `from_environment`.
    """

    def kept(node: Any, path: str) -> Any:
        join = f"{path}." if path else ""
        if isinstance(node, dict):
            return {key: kept(value, f"{join}{key}") for key, value in node.items()}
        if isinstance(node, list):
            return [kept(value, f"{join}{i}") for i, value in enumerate(node)]
        return hidden.get(path, node)

    return kept(config, "")


def about_composition(error: Exception, conf: Configurations) -> str:
    """Return what to say when Hydra cannot compose a configuration.

    Args:
        error: What Hydra raised.
        conf: The files that it composed.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
        file = str(error.missing_cfg_file)
        above = [group for group in conf.groups if file.startswith(f"{group}/")]
        group = max(above, key=len, default=file.rpartition("/")[0])
        name = file.removeprefix(f"{group}/")
        brought = [word.partition("=")[2] for word in PLUGINS if word.startswith(f"{group}=")]
        choices = [*conf.choices(group), *brought]
        if below := [choice for choice in choices if choice.startswith(f"{name}/")]:
            return f"{group}={name} is a folder. Choose one of {', '.join(below)}."
        if (extra := PLUGINS.get(f"{group}={name}")) is not None:
            return f"{group}={name} needs a package that is not installed: {call_with(extra)}"
        return f"{group}={name} is not a choice. {nearest(name, choices)}"
    first = first_line(error)
    if isinstance(error, OverrideParseException):
        word = str(error.override).removeprefix("++")  # which options of saved runs begin with
        key, equals, value = word.partition("=")
        return f"{word!r} is not KEY=VALUE." + (
            f" A value that is not of letters, digits and - _ . / : alone goes in quotes: "
            f"'{key}=\"{value}\"'."
            if equals
            else ""
        )
    if not isinstance(error, ConfigCompositionException) or "'" not in first:
        return " ".join(str(error).split())
    key = first.split("'")[1].removeprefix("override ").partition(":")[0]
    cause = error.__cause__
    if not isinstance(cause, OmegaConfBaseException):
        above = key.rpartition("/")[0]
        other = f", or choose another {above}" if above else ""
        return f"{key} is not part of this configuration. Leave it out{other}."
    siblings = cause.parent_node if isinstance(cause.parent_node, DictConfig) else {}
    if cause.key in siblings:
        return f"{key}: {first_line(cause)}."
    siblings = {*map(str, siblings)} - {"hydra", *OF_FILES}
    parts = key.split(".")
    wrong = parts.index(str(cause.key)) if str(cause.key) in parts else len(parts) - 1
    return unknown_key(".".join(parts[: wrong + 1]), siblings)
