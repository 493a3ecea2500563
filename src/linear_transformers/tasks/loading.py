"""A task out of a checkpoint, ready to run, whichever task it is."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from linear_transformers.config.choices import Choice, checked, checked_choice
from linear_transformers.config.messages import brief, first_line
from linear_transformers.data.base import DataSource, Shape
from linear_transformers.runs.checkpoint import RAW, check_finite, read_checkpoint
from linear_transformers.runs.folder import folder_of
from linear_transformers.tasks.base import Task, Trained

WHICH = ("ema", "raw")
DEVICES = ("cpu", "cuda", "mps", "xpu")


def load(
    path: Path, *, device: str = "auto", weights: str | None = None, folder: Path | None = None
) -> Trained:
    """Rebuild the task that a checkpoint holds; its configuration is checked like a typed one.

    Args:
        path: The checkpoint, or the weights of an exported model.
        device: The device; `auto` is a GPU where there is one.
        weights: `ema` or `raw`; None is what was validated and tested, the average if the
            run kept one.
        folder: The folder of what is made of the model; None is that of the checkpoint's run.

    Raises:
        ValueError: The checkpoint is missing, damaged or something else, or there is no
            such device or average.
    """
    checkpoint = read_checkpoint(path)
    state = _weights(checkpoint, path, weights)
    config = checkpoint["config"]
    try:
        if "${" in json.dumps(config):  # data, never expressions to evaluate here
            raise ValueError("its config holds an interpolation: it was tampered with.")
        model = checked_choice(config.get("model"), "model", torch.nn.Module).without_free_options()
        task = build_task(
            checked_choice(config.get("task"), "task", Task), model, checkpoint["shape"]
        )
        task.model.load_state_dict(state)
        data = checked_choice(config.get("data"), "data", DataSource)
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{path} holds no model that can be rebuilt: {' '.join(str(error).split())}"
        ) from error
    check_finite(task.model, path)
    task.model.to(usable(device, "device")).eval()
    step = None if weights == "raw" and RAW in checkpoint else checkpoint.get("global_step")
    home = folder or folder_of(path)
    return task.trained_class(path, home, config, weights, step, task, data)


def build_task(task: Choice[Task], model: Choice[Any], shape: Any) -> Task:
    """Make a task and its model.

    Args:
        task: The choice of the task.
        model: The choice of its model.
        shape: The shape of its data, or its values by name.

    Raises:
        ValueError: A part refuses the values it is given.
    """
    assert isinstance(task.target, type)
    kind = task.target.shape_class
    if isinstance(shape, Shape) and not isinstance(shape, kind):
        raise ValueError(
            f"{task.path or 'task'}={task.target.__name__} works on data with a {kind.__name__}; "
            f"these have a {type(shape).__name__}. Leave task out: data= brings its own."
        )
    if isinstance(shape, dict):
        values, shape = shape, kind(**checked(kind, shape, "shape"))
        written, read = (json.dumps(x, sort_keys=True) for x in (asdict(shape), values))
        if written != read:  # something was left out, or of another type
            raise ValueError(
                f"The shape {brief(values)} is no {kind.__name__}: {brief(asdict(shape))} is one."
            )
    return task(shape, model)


def _weights(checkpoint: dict[str, Any], path: Path, which: str | None) -> dict[str, torch.Tensor]:
    if which not in (None, *WHICH):
        raise ValueError(f"weights={which} is unknown. Choose one of {list(WHICH)}.")
    if which is not None and "global_step" not in checkpoint:
        raise ValueError(
            f"weights={which} was asked for, and {path} is an exported model, which has one set of "
            "weights. Leave it out, or export the run again with another."
        )
    raw = checkpoint.get(RAW)
    if which == "ema" and raw is None:
        raise ValueError(
            f"weights=ema was asked for, but {path} holds no average: its run was trained "
            "without callbacks=ema. Use weights=raw."
        )
    state = raw if which == "raw" and raw is not None else checkpoint["state_dict"]
    return {name.removeprefix("model."): value for name, value in state.items()}


def usable(name: str, key: str) -> torch.device:
    """Return a device by its name; `auto` is a GPU where there is one.

    Args:
        name: The name.
        key: The option that names it.

    Raises:
        ValueError: There is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if name.partition(":")[0] not in DEVICES:  # of torch's kinds those that can train
            raise RuntimeError(f"there are {', '.join(DEVICES)}")
        device = torch.device(name)
        torch.empty(0, device=device)
        return device
    except (RuntimeError, AssertionError) as error:  # torch asserts where CUDA is not built in
        raise ValueError(
            f"{key}={name} cannot be used ({first_line(error)}). Use {key}=cpu."
        ) from error
