"""What a command line names: packages, runs, checkpoints and files, before PyTorch is imported."""

import re
from collections.abc import Mapping, Sequence
from glob import iglob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from linear_transformers.config.folder import Configurations
from linear_transformers.config.messages import hydra_value, not_installed
from linear_transformers.jobs.composition import composed_value, value_of, values_of
from linear_transformers.runs.folder import (
    AUTO,
    CHECKPOINTS,
    Run,
    check_name,
    find_checkpoint,
    folder_of,
    is_first_process,
)

ALLOW = "allow="  # accepted here only: no file can allow anything
SETS_PATHS = re.compile(r"(\+\+?|~)?(paths|experiment|hydra\.searchpath)\b")


def runs_of(conf: Configurations, arguments: Sequence[str], project: Path) -> Path:
    """Return the folder of the runs that a command line is about, or a preset that it names.

    Raises:
        ValueError: It depends on what is not there.
        HydraException: The words that may set it cannot be composed.
    """
    words = [word for word in arguments if SETS_PATHS.match(word)]
    runs = composed_value("paths.runs", conf, words) if words else None
    return Path(str(runs or project / "runs"))


def packages_of(words: Sequence[str]) -> list[str]:
    """Return the packages that words such as `allow=[PACKAGE]` allow.

    Raises:
        ValueError: One of them is no list of packages, or names one that is not there.
    """
    packages = []
    for word in words:
        listed = re.fullmatch(r"\[(.*)\]|([^\[\]]*)", word.removeprefix(ALLOW))
        names = (listed[1] or listed[2] or "").split(",") if listed else [""]
        packages += [name.strip() for name in names]
        if not all(re.fullmatch(r"[^\W\d]\w*(\.\w+)*", name) for name in packages):
            raise ValueError(f"{word} names no packages. Write allow=[PACKAGE].")
        for package in (name.partition(".")[0] for name in packages):
            if find_spec(package) is None:
                raise ValueError(not_installed(word, package))
    return packages


def check_places(config: Mapping[str, Any], inputs: Sequence[str]) -> None:
    """Refuse names and paths that lead nowhere, before anything slow is imported.

    Args:
        config: The composed configuration.
        inputs: The options that name a file or folder, or a pattern of them, as dotted keys. A
            value may be `-`.

    Raises:
        ValueError: There is no such run, checkpoint, file or folder; or the run's name is taken.
    """
    for key in inputs:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value == "":
            raise ValueError(f"{key} is empty. Give it a file or a folder: {key}=PLACE")
        if isinstance(value, str) and value != "-" and not _is_there(value):
            raise ValueError(f"{key}={value} does not exist.")
    for key, value in config["paths"].items():
        if not value:
            raise ValueError(f"paths.{key} is empty. Give it a folder: paths.{key}=DIR")
        if not isinstance(value, str):
            raise ValueError(f"paths.{key}={value} is no path. Write ./{value} if it is a folder.")
    if "runs" not in config["paths"]:
        raise ValueError("paths.runs has no value. Give it: paths.runs=DIR")
    runs = Path(config["paths"]["runs"])
    resume, name = config.get("resume"), config.get("run_id")
    if resume == AUTO and name is None:
        raise ValueError("resume=auto goes on with a run by its name: give run_id=NAME.")
    if resume == AUTO and not config.get("train"):
        raise ValueError("resume=auto goes on with training; train=false tests resume=RUN_OR_FILE.")
    begun = resume == AUTO and Run(runs / str(name)).checkpoints_to_resume()
    for key in ("resume",) if begun else ("resume", "init_from"):
        if (value := config.get(key)) is not None and value != AUTO:
            find_checkpoint(str(value), runs)
    if isinstance(name, float | bool):
        raise ValueError(
            f"run_id={name} was read as no name. Put it in quotes where it is written."
        )
    if name is not None and is_first_process():
        resume = resume if config.get("train") else None
        check_name(runs, str(name), resume=None if resume is None else str(resume))


def _is_there(path: str) -> bool:
    return Path(path).exists() or any(iglob(path, recursive=True))  # noqa: PTH207


def use_of(conf: Configurations, arguments: Sequence[str], project: Path) -> list[str]:
    """Return the override that adds what a program takes for the task of its checkpoint.

    The run's configuration knows the task; a checkpoint away from its run has to be read.

    Raises:
        ValueError: No checkpoint is named, or there is none of that name, or it is damaged.
    """
    ckpt = value_of("ckpt", arguments)
    if not ckpt:
        raise ValueError("ckpt has no value. Give it: ckpt=RUN_OR_FILE")
    path = find_checkpoint(ckpt, runs_of(conf, arguments, project))
    records = [*Run(folder_of(path)).configurations.values()]
    if path.parent.name == CHECKPOINTS and records:
        record = records[-1]
        try:
            config = yaml.safe_load(record.read_text())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{record} is damaged. Remove it: the checkpoints know their configuration."
            ) from error
    else:
        config = _config_in(path)
    match config:
        case {"task": {"_target_": str(target)}}:
            # A task's file has its class's name, in small letters.
            task = re.sub(r"(?<!^)(?=[A-Z])", "_", target.rpartition(".")[2]).lower()
            return [f"{conf.program}={task}"] if task in conf.uses else []
    raise ValueError(f"{path} does not say what task it was trained for. Give another checkpoint.")


def model_of(conf: Configurations, arguments: Sequence[str], project: Path) -> list[str]:
    """Return the overrides that give a run the model of the one whose weights it begins with,
    unless the command line chooses another.

    Raises:
        ValueError: There are several such runs, or none of that name, or it is damaged.
        HydraException: See `composed_value`.
    """
    names = values_of("init_from", arguments)
    if names in ([], ["null"]) or _chooses_model(conf, arguments):
        return []
    if len(names) > 1:
        raise ValueError(f"init_from={','.join(names)}: their models may differ. Add model=.")
    runs = runs_of(conf, arguments, project)
    own = Run(runs / (value_of("run_id", arguments) or ""))
    if value_of("resume", arguments) == AUTO and own.checkpoints_to_resume():
        from linear_transformers.runs.checkpoint import newest_whole  # late: torch takes seconds

        found = newest_whole(own)  # it goes on, and has that model
        assert found is not None
        config = found.checkpoint["config"]
    else:
        config = _config_in(find_checkpoint(names[0], runs))
    return ["~model", f"+model={hydra_value(config['model'])}"]


def _chooses_model(conf: Configurations, arguments: Sequence[str]) -> bool:
    """Return whether a command line, or an experiment that it names, chooses a model."""
    words = [word.lstrip("+") for word in arguments]
    if any(word.startswith(("model=", "model/")) for word in words):
        return True
    if not (experiment := [word for word in words if word.startswith("experiment=")]):
        return False
    typed = [word for word in words if word.startswith("data=")]
    chosen = composed_value("hydra.runtime.choices", conf, [*typed, *experiment])
    proposed = composed_value("hydra.runtime.choices", conf, [f"data={chosen['data']}"])
    return chosen["model"] != proposed["model"]  # the data propose one


def _config_in(path: Path) -> dict[str, Any]:
    from linear_transformers.runs.checkpoint import read_checkpoint  # late: torch takes seconds

    return read_checkpoint(path)["config"]
