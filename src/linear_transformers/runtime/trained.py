"""A model out of a checkpoint, ready to run."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from linear_transformers.data import ImageShape, SpeechShape
from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer, SpeechEncoder
from linear_transformers.runtime.build import build_encoder, build_model
from linear_transformers.runtime.checkpoint import load_checkpoint
from linear_transformers.runtime.schema import Trained as TrainedConfig
from linear_transformers.runtime.validation import validated

WEIGHTS = ("ema", "raw")


@dataclass
class Trained:
    """A model, the distribution of its values, and what made it.

    Attributes:
        path: The checkpoint.
        config: The training run's configuration, as plain data.
        model_config: The part of it that the model was rebuilt from, validated.
        shape: Of the images.
        model: In `eval()` mode, on its device.
        distribution: What its output are the parameters of.
    """

    path: Path
    config: dict[str, Any]
    model_config: DictConfig
    shape: ImageShape
    model: AutoregressiveTransformer
    distribution: ValueDistribution


def load_trained(path: Path, *, device: str = "auto", weights: str | None = None) -> Trained:
    """Rebuild the model that a checkpoint holds; its config is checked like a typed one.

    Args:
        path: The checkpoint.
        device: `auto` is a GPU where there is one.
        weights: `ema` or `raw`; None is what was validated and tested, the average if the
            run kept one.

    Raises:
        ValueError: The checkpoint is missing, damaged or something else, or there is no
            such device or average.
    """
    checkpoint = load_checkpoint(path)
    if checkpoint["shape"].keys() != set(ImageShape._fields):
        raise ValueError(f"{path} is no model of images: sample.py makes nothing else.")
    shape = ImageShape(**checkpoint["shape"])
    state = _weights(checkpoint, path, weights)
    with _rebuilding(path):
        config = _config(checkpoint)
        model, distribution = build_model(config, shape)
        model.load_state_dict(state)
    model = model.to(_device(device)).eval()
    return Trained(path, checkpoint["config"], config, shape, model, distribution)


@dataclass
class Recogniser:
    """A speech model and what made it; see `Trained`.

    Attributes:
        shape: Of recordings, and what its labels mean.
    """

    path: Path
    config: dict[str, Any]
    shape: SpeechShape
    model: SpeechEncoder


def load_recogniser(path: Path, *, device: str = "auto", weights: str | None = None) -> Recogniser:
    """Rebuild the speech model that a checkpoint holds. See `load_trained`.

    Raises:
        ValueError: The checkpoint is missing, damaged or something else, or there is no
            such device or average.
    """
    checkpoint = load_checkpoint(path)
    if checkpoint["shape"].keys() != set(SpeechShape._fields):
        raise ValueError(f"{path} is no model of speech: transcribe.py has no use for others.")
    state = _weights(checkpoint, path, weights)
    with _rebuilding(path):
        shape = SpeechShape(**checkpoint["shape"])
        model = build_encoder(_config(checkpoint), shape)
        model.load_state_dict(state)
    return Recogniser(path, checkpoint["config"], shape, model.to(_device(device)).eval())


def _config(checkpoint: dict[str, Any]) -> DictConfig:
    """What a checkpoint's model is rebuilt from, checked like a typed config."""
    config = checkpoint["config"]
    if "${" in json.dumps(config):  # data, never expressions to evaluate here
        raise ValueError("its config holds an interpolation: it was tampered with.")
    parts = DictConfig({key: config.get(key) for key in ("model", "task", "data")})
    if OmegaConf.select(parts, "model.attention.kernel") is not None:
        # What trained a model does not bind whoever loads it, perhaps on another machine.
        parts.model.attention.kernel = "auto"
    return validated(parts, TrainedConfig)


@contextmanager
def _rebuilding(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{path} holds no model that can be rebuilt: {' '.join(str(error).split())}"
        ) from error


def _weights(checkpoint: dict[str, Any], path: Path, which: str | None) -> dict[str, torch.Tensor]:
    if which not in (None, *WEIGHTS):
        raise ValueError(f"weights={which} is unknown. Choose one of {list(WEIGHTS)}.")
    raw = checkpoint.get("current_model_state")  # where an average stands in for it
    if which == "ema" and raw is None:
        raise ValueError(
            f"weights=ema was asked for, but {path} holds no average: its run was trained "
            "without callbacks=ema. Use weights=raw."
        )
    state = raw if which == "raw" and raw is not None else checkpoint["state_dict"]
    return {name.removeprefix("model."): value for name, value in state.items()}


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:  # torch asserts where CUDA is not built in
        raise ValueError(
            f"device={name} cannot be used ({str(error).splitlines()[0]}). Use device=cpu."
        ) from error
