"""Composition in one place: attention goes into the model, the model into the task."""

from collections.abc import Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from hydra.utils import get_class, instantiate
from lightning import Callback, Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig

from linear_transformers.attention import AttentionFactory
from linear_transformers.data import DataModule, SequenceShape, Shape, SpeechShape
from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import (
    AutoregressiveTransformer,
    BiLstm,
    SpeechEncoder,
    Transformer,
)
from linear_transformers.runtime.checkpoint import AtomicCheckpoints, RunInCheckpoint
from linear_transformers.runtime.complaints import first_line
from linear_transformers.runtime.resuming import EpochPlace, StepSeed
from linear_transformers.runtime.runs import Run
from linear_transformers.runtime.tracking import Description, Record, Tracker
from linear_transformers.tasks import Task


def make(node: DictConfig, **parts: Any) -> Any:
    """Instantiate one validated node; a `_partial_` one becomes a factory.

    Raises:
        ValueError: Its class refuses the values it is given.
    """
    # Always partial: among the arguments of `instantiate`, Hydra makes dataclasses into dicts.
    factory = instantiate(node, _recursive_=False, _convert_="all", _partial_=True)
    if node.get("_partial_"):
        return partial(factory, **parts)
    package, _, name = node["_target_"].rpartition(".")
    try:
        return factory(**parts)
    except (ValueError, MisconfigurationException) as error:
        ours = package.startswith("linear_transformers.")
        raise ValueError(str(error) if ours else f"{name}: {first_line(error)}.") from error


def build_data(cfg: DictConfig) -> DataModule:
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


def build_stack(cfg: DictConfig, max_length: int | None) -> Transformer | BiLstm:
    """The layers of a model for sequences of bounded or unbounded length."""
    if "attention" not in cfg.model:
        return make(cfg.model)
    return make(
        _without(cfg.model, "feature_map"),
        attention=build_attention(cfg.model),
        max_length=max_length,
    )


def build_model(
    cfg: DictConfig, shape: SequenceShape
) -> tuple[AutoregressiveTransformer, ValueDistribution]:
    """The model for sequences of a shape, and the distribution its output parametrises.

    Raises:
        ValueError: A part refuses the values it is given, or the layers have no steps.
    """
    distribution = make(cfg.task.distribution)(shape.num_values)
    stack = build_stack(cfg, shape.length)
    if not isinstance(stack, Transformer):
        raise ValueError(
            f"{type(stack).__name__} reads both ways: it is for speech (data=espeak, ...). "
            "Choose another model."
        )
    model = AutoregressiveTransformer(
        stack, num_values=shape.num_values, num_parameters=distribution.num_parameters
    )
    return model, distribution


def build_encoder(cfg: DictConfig, shape: SpeechShape) -> SpeechEncoder:
    """The model that scores the labels of a shape.

    Raises:
        ValueError: A part refuses the values it is given.
    """
    return make(cfg.task.encoder)(
        build_stack(cfg, None), num_mels=shape.num_mels, num_labels=len(shape.labels)
    )


def build_task(cfg: DictConfig, shape: Shape) -> Task:
    """The model with its loss, metrics and optimizer.

    Raises:
        ValueError: A part refuses the values it is given.
    """
    if isinstance(shape, SpeechShape):
        model = build_encoder(cfg, shape)
        parts: dict[str, Any] = {"labels": shape.labels}
    else:
        assert isinstance(shape, SequenceShape)
        model, distribution = build_model(cfg, shape)
        parts = {"distribution": distribution}
    optimizer = make(cfg.optimizer)
    try:
        optimizer(model.parameters())  # a factory complains only when it is called
    except ValueError as error:
        raise ValueError(f"optimizer: {first_line(error)}.") from error
    return make(
        _without(cfg.task, "distribution", "encoder"),
        model=model,
        optimizer=optimizer,
        scheduler=make(cfg.scheduler),
        **parts,
    )


def build_trackers(cfg: DictConfig, description: Description) -> list[Tracker]:
    """Where the job can be watched. Only the first process of a run starts them.

    Raises:
        ValueError: A tracker refuses its values, or its package is not installed.
    """
    trackers = []
    for name, node in cfg.logger.items():
        try:
            trackers.append(make(node, description=description))
        except ModuleNotFoundError as error:
            raise ValueError(
                f"logger={name} needs a package that is not installed: "
                f"pip install 'linear-transformers[{name}]'."
            ) from error
    return trackers


def build_trainer(cfg: DictConfig, run: Run, shape: Shape, trackers: Sequence[Tracker]) -> Trainer:
    """Lightning's trainer with this run's files, callbacks and loggers."""
    callbacks: list[Callback] = [
        RunInCheckpoint(cfg, shape, run), StepSeed(cfg.seed), EpochPlace(run)
    ]  # fmt: skip
    for name, node in cfg.callbacks.items():
        kind = node["_target_"].rsplit(".", 1)[1]
        files = {
            "ModelCheckpoint": {
                "dirpath": str(run.checkpoints), "filename": name, "enable_version_counter": False
            },
            "Samples": {"run": run},
        }  # fmt: skip
        callbacks.append(make(node, **files.get(kind, {})))
    return make(
        cfg.trainer,
        callbacks=callbacks,
        logger=[Record(run.metrics), *trackers],
        plugins=[AtomicCheckpoints()],
        default_root_dir=str(run.path),
        use_distributed_sampler=False,  # the data module's batches know their device
        enable_progress_bar=False,  # Progress is the bar
        enable_model_summary=False,
    )


def _without(node: DictConfig, *keys: str) -> DictConfig:
    """The node without the parts that code, not `instantiate`, hands on."""
    return DictConfig({name: value for name, value in node.items() if name not in keys})


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
