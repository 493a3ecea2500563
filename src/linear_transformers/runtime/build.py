"""Composition in one place: attention goes into the model, the model into the task."""

from inspect import signature
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from lightning import Callback, Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from linear_transformers.attention import AttentionFactory
from linear_transformers.data import ImageDataModule, ImageShape
from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.runtime.checkpoint import AtomicCheckpoints, RunInCheckpoint
from linear_transformers.runtime.complaints import first_line
from linear_transformers.runtime.metrics import MetricsFile
from linear_transformers.runtime.randomness import StepSeed
from linear_transformers.runtime.runs import Run
from linear_transformers.tasks import ImageGeneration


def make(node: DictConfig, **parts: Any) -> Any:
    """Instantiate one validated node.

    Raises:
        ValueError: Its class refuses the values it is given.
    """
    try:
        return instantiate(node, _recursive_=False, _convert_="all", **parts)
    except InstantiationException as error:
        cause = error.__cause__
        if not isinstance(cause, ValueError | MisconfigurationException):
            raise
        name = node["_target_"].rsplit(".", 1)[1]
        ours = node["_target_"].startswith("linear_transformers.")
        raise ValueError(str(cause) if ours else f"{name}: {first_line(cause)}.") from cause


def build_data(cfg: DictConfig) -> ImageDataModule:
    return make(cfg.data)


def build_attention(model: DictConfig) -> AttentionFactory:
    """What makes the attention of each layer, with its feature map where it takes one."""
    attention = model.attention["_target_"]
    takes_one = "feature_map" in signature(get_class(attention)).parameters
    if takes_one != (model.feature_map is not None):
        found, wanted = ("none", "needs one") if takes_one else ("one", "takes none")
        raise ValueError(f"model.feature_map has {found}, but {attention} {wanted}.")
    if not takes_one:
        return make(model.attention)
    return make(model.attention, feature_map=make(model.feature_map))


def build_model(
    cfg: DictConfig, shape: ImageShape
) -> tuple[AutoregressiveTransformer, ValueDistribution]:
    """The model for images of a shape, and the distribution its output parametrises."""
    distribution = make(cfg.task.distribution)(shape.num_levels)
    model = make(
        _without(cfg.model, "feature_map"),
        attention=build_attention(cfg.model),
        num_values=shape.num_levels,
        max_length=shape.length,
        num_parameters=distribution.num_parameters,
    )
    return model, distribution


def build_task(cfg: DictConfig, shape: ImageShape) -> ImageGeneration:
    """The model with its loss, metrics and optimizer.

    Raises:
        ValueError: A part refuses the values it is given.
    """
    model, distribution = build_model(cfg, shape)
    optimizer = make(cfg.optimizer)
    try:
        optimizer(model.parameters())  # a factory complains only when it is called
    except ValueError as error:
        raise ValueError(f"optimizer: {first_line(error)}.") from error
    return make(
        _without(cfg.task, "distribution"),
        model=model,
        distribution=distribution,
        optimizer=optimizer,
        scheduler=make(cfg.scheduler),
    )


def build_trainer(cfg: DictConfig, run: Run, shape: ImageShape) -> Trainer:
    """Lightning's trainer with this run's files, callbacks and loggers."""
    callbacks: list[Callback] = [RunInCheckpoint(cfg, shape, run), StepSeed(cfg.seed)]
    for name, node in cfg.callbacks.items():
        file = {"dirpath": str(run.checkpoints), "filename": name, "enable_version_counter": False}
        saves = node["_target_"].endswith("ModelCheckpoint")
        callbacks.append(make(node, **(file if saves else {})))
    loggers: list[Logger] = [MetricsFile(run.metrics)]
    loggers += [make(node, save_dir=str(run.path), name="csv") for node in cfg.logger.values()]
    return make(
        cfg.trainer,
        callbacks=callbacks,
        logger=loggers,
        plugins=[AtomicCheckpoints()],
        default_root_dir=str(run.path),
        use_distributed_sampler=False,  # the data module's batches know their device
        enable_progress_bar=False,  # Progress is the bar
        enable_model_summary=False,
    )


def _without(node: DictConfig, key: str) -> DictConfig:
    """The node without a part that code, not `instantiate`, hands on."""
    return DictConfig({name: value for name, value in node.items() if name != key})


def checkpoint_path(name: str, runs: Path) -> Path:
    """The file that a run's name, a run's directory or a path means.

    Raises:
        ValueError: None of these is there.
    """
    for candidate in (Path(name), runs / name):
        if candidate.is_file():
            return candidate
        if candidate.is_dir():
            return Run(candidate).best_checkpoint()
    known = sorted(path.parent.name for path in runs.glob("*/checkpoints"))
    there = f"Runs in {runs}: {', '.join(known[-5:])}." if known else f"{runs} holds no runs yet."
    raise ValueError(f"{name} is neither a run nor a checkpoint file. {there}")
