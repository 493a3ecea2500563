"""Checkpoints: plain data with a format number, read without executing code, and migrated.

`FORMAT` is the current format. Earlier formats are migrated one by one, and later ones are refused.
A checkpoint without a number is of format 1.
"""

import hashlib
import json
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from linear_transformers.config.messages import first_line, the_first
from linear_transformers.data.base import Shape
from linear_transformers.provenance import read_provenance
from linear_transformers.runs.exported import CONFIG, HASH, WEIGHTS, portable, read_config
from linear_transformers.runs.folder import Run, folder_of, shown
from linear_transformers.runs.metrics import TESTED_STEP, read_metrics, summary

FORMAT = 3
# The weights as they are trained, where the average of callbacks=ema is the checkpoint's
# `state_dict`: Lightning's name.
RAW = "current_model_state"


def described(config: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """Return the description of a run that its checkpoints carry.

    Args:
        config: The run's configuration, as plain data.
        shape: The shape of the data.
    """
    about = {"config": config, "shape": asdict(shape)}
    return {"format": FORMAT, **about, "digest": _digest(about)}


def _digest(checkpoint: dict[str, Any]) -> str:
    """Return a digest of a description: weights alone do not tell which model they are of."""
    about = [checkpoint["config"], checkpoint["shape"]]
    text = json.dumps(about, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of this project, of this format or an earlier one; or an exported model.

    Nothing in it is executed. It is loaded to the CPU: a GPU's checkpoint loads where there is
    none.

    Raises:
        ValueError: The file is missing, damaged, something else, or of a later format.
    """
    if not path.is_file():
        raise ValueError(f"The checkpoint {path} does not exist.")
    checkpoint = (_read_exported if path.name == WEIGHTS else _read)(path)
    if isinstance(checkpoint, str):
        raise ValueError(f"{path} {checkpoint}. {_others(path)}")
    return _up_to_date(checkpoint, path)


def _read(path: Path) -> dict[str, Any] | str:
    """Return what a file holds, or what is wrong with it."""
    if damage := _damage(path):
        return damage
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, UnicodeDecodeError):
        return (  # not what torch says: how to execute it all the same
            "is not a checkpoint of plain data and tensors, so it was not made by this project "
            "and is not loaded"
        )
    return _checked(checkpoint)


def _read_exported(path: Path) -> dict[str, Any] | str:
    """Return what an exported model holds, as a checkpoint has it, or what is wrong with it."""
    about = read_config(path)
    if file_hash(path) != about.pop(HASH):
        return f"is damaged, or is not what {CONFIG} beside it is of: its hash is another"
    weights = load_file(path)
    return _checked(about | {"state_dict": {f"model.{name}": x for name, x in weights.items()}})


def _checked(checkpoint: Any) -> dict[str, Any] | str:
    """Return a checkpoint, or what is wrong with it."""
    if not _is_ours(checkpoint):
        return "is not a checkpoint of this project: it lacks config, shape or state_dict"
    try:
        intact = _digest(checkpoint)
    except TypeError as error:
        return f"is not a checkpoint of this project: {first_line(error)}"
    if checkpoint.get("digest", intact) != intact:
        return (
            "was changed after it was saved: its config or shape is not what its weights were "
            "trained with"
        )
    return checkpoint


def write_exported(
    folder: Path,
    config: dict[str, Any],
    shape: Shape,
    weights: Mapping[str, Tensor],
    known: Mapping[str, Any],
) -> None:
    """Write the weights of an exported model, and what they are of.

    Args:
        folder: The folder, which nobody reads yet.
        config: See `described`.
        shape: See `described`.
        weights: The weights by name; ones that share memory are written once each.
        known: What `history` returned.
    """
    path = folder / WEIGHTS
    path.write_bytes(save({name: weight.cpu().clone() for name, weight in weights.items()}))
    about = {**described(portable(config), shape), **known, HASH: file_hash(path)}
    path.with_name(CONFIG).write_text(json.dumps(about, indent=2) + "\n")


def history(path: Path, step: int | None) -> dict[str, Any]:
    """Return what is known of how weights were trained: the `figures` of the run, the `provenance`
    of its start, or None, and what they were `rounded` to since, one after the other. Figures of a
    test are those of these weights, or left out.

    Args:
        path: The checkpoint, or the weights of an exported model.
        step: See `Trained`.
    """
    if path.name == WEIGHTS:
        about = read_config(path)
        empty = {"figures": {}, "provenance": None, "rounded": []}
        return {name: about.get(name, none) for name, none in empty.items()}
    run = Run(folder_of(path))
    start = next(iter(read_provenance(run.path)), None)
    figures = summary(run.metrics)
    tests = [row[TESTED_STEP] for row in read_metrics(run.metrics) if TESTED_STEP in row]
    if step is None or (tests and tests[-1] != step):  # earlier records do not say
        figures = {name: value for name, value in figures.items() if not name.startswith("test_")}
    return {"figures": figures, "provenance": start, "rounded": []}


class Found(NamedTuple):
    """The checkpoint that a run continues from.

    Attributes:
        path: The file.
        checkpoint: What it holds.
        passed_over: What is wrong with later ones, a line each.
    """

    path: Path
    checkpoint: dict[str, Any]
    passed_over: list[str]


def newest_whole(run: Run) -> Found | None:
    """Return the newest checkpoint of a run that is whole; None if the run has none at all.

    Raises:
        ValueError: All of them are damaged.
    """
    passed_over = []
    for path in run.checkpoints_to_resume():
        checkpoint = _read(path)
        if isinstance(checkpoint, dict):
            return Found(path, _up_to_date(checkpoint, path), passed_over)
        passed_over.append(f"{shown(path)} {checkpoint}")
    if passed_over:
        raise ValueError(
            f"No checkpoint of {shown(run.path)} is whole: {'; '.join(passed_over)}. Remove them "
            "to start the run anew, or choose another run_id."
        )
    return None


def _damage(path: Path) -> str | None:
    """Return what is wrong with a file as such: checksums are of all that it holds."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch itself would load flipped bits silently
    except (
        zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError,
        NotImplementedError, IndexError, OverflowError, struct.error,
    ) as error:  # fmt: skip
        return (
            f"is not a checkpoint, or only a part of one ({first_line(error)}; "
            f"{path.stat().st_size} bytes)"
        )
    return None if damaged is None else f"is damaged: the checksum of {damaged} does not match"


def _others(path: Path) -> str:
    """Return what to give instead of a damaged checkpoint."""
    whole = (
        str(shown(other))
        for other in sorted(path.parent.glob("*.ckpt"))
        if other != path and _damage(other) is None
    )
    named = the_first(whole)  # a run may keep hundreds
    return f"Whole beside it: {named}." if named else "Give another file, or another run."


def check_finite(model: torch.nn.Module, path: Path) -> None:
    """Refuse weights that are not finite: nothing they compute is a number.

    Args:
        model: The model.
        path: The checkpoint that its weights are of.

    Raises:
        ValueError: Some are not.
    """
    for name, value in model.named_parameters():
        if not value.isfinite().all():
            raise ValueError(f"{path} holds weights that are not finite numbers, in {name}.")


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_ours(checkpoint: Any) -> bool:
    match checkpoint:
        case {"config": {"model": dict()}, "shape": dict(), "state_dict": dict(weights)}:
            return all(isinstance(weight, torch.Tensor) for weight in weights.values())
    return False


def _up_to_date(checkpoint: dict[str, Any], path: Path) -> dict[str, Any]:
    number = checkpoint.get("format", 1)
    if not isinstance(number, int) or not 1 <= number <= FORMAT:
        raise ValueError(
            f"{path} has format {number}, and this version reads formats 1 to {FORMAT}. "
            "Use a newer version of this project."
        )
    for step in range(number, FORMAT):
        checkpoint = MIGRATIONS[step](checkpoint)
    return checkpoint | {"format": FORMAT}


def _from_1(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Migrate format 1, in which nodes had a `_partial_`, feature maps were beside the attention,
    linear attention had a `chunk_size`, and Lightning's ModelCheckpoint kept the files."""
    config = _renamed(checkpoint["config"])
    model = config["model"]
    if (feature_map := model.pop("feature_map", None)) is not None:  # of linear attention
        model["attention"]["feature_map"] = feature_map
        model["attention"].pop("chunk_size", None)
    states = {
        next((ours for words, ours in _CALLBACKS if words in name), name): state
        for name, state in checkpoint.get("callbacks", {}).items()
    }
    return checkpoint | {"config": config, "callbacks": states}


def _from_2(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Migrate format 2, in which blocks owned an attention and its projections: no mixers."""
    model = dict(checkpoint["config"]["model"])
    if (attention := model.pop("attention", None)) is not None:  # a BiLSTM has none
        model["mixer"] = {
            "_target_": "linear_transformers.mixers.MultiHeadAttention",
            "attention": attention,
        }
    config = checkpoint["config"] | {"model": model}
    return _with_mixers(checkpoint | {"config": config})


# What blocks owned that is their mixer's now, in the names of weights.
_BLOCK_PART = re.compile(r"(\bblocks\.\d+\.)(attention|project_in|project_out)\.")
_BLOCK_NORM = re.compile(r"(\bblocks\.\d+\.)attention_norm\.")


def _with_mixers(node: Any) -> Any:
    """Return plain data with the present names of weights, wherever they are keys."""
    if not isinstance(node, dict):
        return node
    renamed = {}
    for key, value in node.items():
        if isinstance(key, str):
            key = _BLOCK_NORM.sub(r"\1mixer_norm.", _BLOCK_PART.sub(r"\1mixer.\2.", key))
        renamed[key] = _with_mixers(value)
    return renamed


# Words in the former key of a ModelCheckpoint's state, and its present key.
_CALLBACKS = (("'monitor': 'val/", "BestCheckpoint"), ("'monitor': None", "LastCheckpoint"))
# Classes that moved: their old names, and the new ones.
ALIASES = {
    "linear_transformers.tasks.schedules.": "linear_transformers.training.schedules.",
    "linear_transformers.runtime.measure.": "linear_transformers.callbacks.",
    "linear_transformers.runtime.progress.": "linear_transformers.callbacks.",
    "linear_transformers.runtime.redraw.": "linear_transformers.callbacks.",
    "linear_transformers.runtime.showing.": "linear_transformers.callbacks.",
    "linear_transformers.runtime.tracking.": "linear_transformers.tracking.",
}
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1, 2: _from_2}


def _renamed(node: Any) -> Any:
    """Return a configuration with the present names of classes, and no `_partial_`."""
    if not isinstance(node, dict):
        return node
    renamed = {key: _renamed(value) for key, value in node.items() if key != "_partial_"}
    target = renamed.get("_target_", "")
    for old, new in ALIASES.items():
        if isinstance(target, str) and target.startswith(old):
            renamed["_target_"] = new + target.removeprefix(old)
    return renamed
