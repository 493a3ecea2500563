"""The job behind train.py: train, test, show what the model makes, say how it went."""

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning import Trainer, seed_everything
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf

from linear_transformers.data import DataModule, SpeechDataModule
from linear_transformers.provenance import provenance
from linear_transformers.runtime.build import (
    build_data,
    build_task,
    build_trackers,
    build_trainer,
    checkpoint_path,
)
from linear_transformers.runtime.checkpoint import load_checkpoint
from linear_transformers.runtime.complaints import first_line
from linear_transformers.runtime.project import shown
from linear_transformers.runtime.reports import REPORTS
from linear_transformers.runtime.runs import Run, claim_run, close_run, open_run
from linear_transformers.runtime.showing import trackers_of
from linear_transformers.runtime.sweeps import Outcome
from linear_transformers.runtime.tracking import Description, started
from linear_transformers.runtime.tracking.record import summary
from linear_transformers.runtime.validation import plain
from linear_transformers.tasks import ImageGeneration, SpeechRecognition, Task

# What a continued run may change: the model computes the same function of its weights.
FREE_TO_CHANGE = {
    "model.dropout",
    "model.activation_checkpointing",
    "model.attention.block_size",
    "model.attention.chunk_size",
    "model.attention.kernel",
}
MATMUL_PRECISIONS = ("highest", "high", "medium")


def train(cfg: DictConfig) -> Outcome:
    """Run one job.

    Everything that can be refused is refused before the run's directory is made.
    """
    _quiet()
    _check(cfg)
    torch.set_float32_matmul_precision(cfg.matmul_precision)
    seed_everything(cfg.seed, workers=True, verbose=False)
    data = build_data(cfg)
    task = build_task(cfg, data.shape)
    resume = None if cfg.ckpt_path is None else _resumable(cfg, data, task)
    hydra = HydraConfig.get()
    run = claim_run(cfg, label=f"{hydra.runtime.choices['data']}-{hydra.runtime.choices['model']}")
    if cfg.group is None:
        sweep = Path(hydra.sweep.dir).name if hydra.mode == RunMode.MULTIRUN else None
        cfg.group = sweep or run.path.name
    try:
        trackers = build_trackers(cfg, _description(cfg, run))
        trainer = build_trainer(cfg, run, data.shape, trackers)
        if hydra.mode == RunMode.MULTIRUN and trainer.world_size > 1:
            raise ValueError("A multirun (-m) trains on one device: use trainer.devices=1.")
        task.model.stack.kernel_on(trainer.strategy.root_device)  # refuses what cannot run there
        if trainer.is_global_zero:
            data.prepare_data()
            data.check_sizes(trainer.world_size)
        notes = _fit_to_each_other(data, task)
        open_run(run, cfg)
        with started(trackers if trainer.is_global_zero else ()) as lines:
            if trainer.is_global_zero:
                _announce(run, data, task, trainer, [*lines, *notes])
            return _run(cfg, run, data, task, trainer, resume)
    except MisconfigurationException as error:
        raise ValueError(f"Trainer: {first_line(error)}.") from error
    finally:
        close_run(run)


def _run(
    cfg: DictConfig,
    run: Run,
    data: DataModule,
    task: Task,
    trainer: Trainer,
    resume: Path | None,
) -> Outcome:
    first = trainer.is_global_zero
    if cfg.compile:
        task.model.compile()
    if cfg.train:
        _fit(trainer, run, data, task, resume)
    if cfg.train and first:
        for tracker in trackers_of(trainer):
            tracker.log_checkpoints(run.best_checkpoint(), run.last_checkpoint)
    if not cfg.test:
        return Outcome(None, {"run": run.path.name, **summary(run.metrics)} if first else {})
    tested = run.best_checkpoint() if cfg.train else resume
    assert tested is not None  # _check asked for one
    task.load_state_dict(load_checkpoint(tested)["state_dict"])
    figure = trainer.test(task, data, verbose=False)[0][f"test/{task.figure}"]
    if first:
        where = REPORTS[type(task)](run, data, task, trainer)
        print("", f"run      {shown(run.path)}", *where, sep="\n")
        _say_what_next(task, run, run.path if cfg.train else tested)
    return Outcome(figure, {"run": run.path.name, **summary(run.metrics)} if first else {})


def _say_what_next(task: Task, run: Run, trained: Path) -> None:
    if isinstance(task, ImageGeneration):
        print(f"next     uv run sample.py ckpt={shown(trained)}")
    elif isinstance(task, SpeechRecognition):
        audio = shown(run.samples / "test")
        print(f"next     uv run transcribe.py ckpt={shown(trained)} audio={audio}")


def _fit(trainer: Trainer, run: Run, data: DataModule, task: Task, resume: Path | None) -> None:
    """Train. A run that is stopped from outside says how it goes on, and exits as stopped."""
    try:
        trainer.fit(task, data, ckpt_path=str(resume) if resume else None)
    except SystemExit:  # Lightning's end for Ctrl-C, and for SIGTERM with code 0
        if trainer.is_global_zero:
            name = run.path.name
            print(f"stopped at step {trainer.global_step}", file=sys.stderr)
            print(f"next     the same command with run_id={name} ckpt_path={name}", file=sys.stderr)
        sys.exit(143 if trainer.received_sigterm else 130)


def _check(cfg: DictConfig) -> None:
    if cfg.seed < 0:
        raise ValueError(f"seed={cfg.seed} was asked for; it must be 0 or above.")
    if cfg.matmul_precision not in MATMUL_PRECISIONS:
        raise ValueError(
            f"matmul_precision={cfg.matmul_precision} is unknown. "
            f"Choose one of {list(MATMUL_PRECISIONS)}."
        )
    if cfg.test and not cfg.train and cfg.ckpt_path is None:
        raise ValueError("train=false test=true tests a checkpoint: give ckpt_path=RUN_OR_FILE.")
    if cfg.test and cfg.trainer.limit_test_batches == 0:
        raise ValueError("trainer.limit_test_batches=0 leaves nothing to test: use test=false.")


def _resumable(cfg: DictConfig, data: DataModule, task: Task) -> Path:
    """The checkpoint to continue from, once it is known to be of the same model and images."""
    runs = Path(cfg.paths.runs)
    path = Path(cfg.ckpt_path)
    run = path if path.is_dir() else runs / path
    last = Run(run).last_checkpoint
    path = last if cfg.train and last.is_file() else checkpoint_path(cfg.ckpt_path, runs)
    saved = load_checkpoint(path)
    if saved["shape"] != data.shape._asdict():
        raise ValueError(
            f"The checkpoint {path} was made for data of {saved['shape']}, these are "
            f"{data.shape._asdict()}. Give it the same data."
        )
    for part in ("model", "task"):
        theirs = _flat(saved["config"].get(part, {}), part)
        ours = _flat(OmegaConf.to_container(cfg[part]), part)
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name) and name not in FREE_TO_CHANGE:
                raise ValueError(
                    f"The checkpoint {path} was made with {name}={theirs.get(name)}, this run "
                    f"has {name}={ours.get(name)}. Give it the same."
                )
    shapes = {name: value.shape for name, value in saved["state_dict"].items()}
    if shapes != {name: value.shape for name, value in task.state_dict().items()}:
        raise ValueError(f"The weights in {path} do not fit the model that its config describes.")
    return path


def _flat(node: Any, path: str) -> dict[str, Any]:
    """Nested keys as dotted ones."""
    if not isinstance(node, dict):
        return {path: node}
    return {k: v for key in node for k, v in _flat(node[key], f"{path}.{key}").items()}


def _fit_to_each_other(data: DataModule, task: Task) -> list[str]:
    """What a model takes over from its data, and data leave out for a model; in lines."""
    if not isinstance(data, SpeechDataModule):
        return []
    lines = data.leave_out(task.model.num_outputs)
    mean, deviation = (torch.from_numpy(x) for x in data.statistics())
    task.model.adopt(mean, deviation, data.longest)
    return [f"note     {line}" for line in lines]


def _announce(run: Run, data: DataModule, task: Task, trainer: Trainer, watch: list[str]) -> None:
    stack = task.model.stack
    parameters = sum(p.numel() for p in task.parameters())
    lines = [
        f"data     {data.shape.description}",
        f"model    {stack.description}, {parameters / 1e6:.2f} M parameters, "
        f"kernel: {stack.kernel_on(trainer.strategy.root_device)}",
        f"device   {trainer.world_size} x {trainer.strategy.root_device.type}, "
        f"{torch.get_num_threads()} threads, precision {trainer.precision}",
        f"run      {shown(run.path)}",
        *watch,
    ]
    if stack.causal and not stack.attention.exactly_causal:
        lines.append("caution  later values change earlier outputs: its figures are no likelihood")
    print("\n".join(lines), flush=True)


def _description(cfg: DictConfig, run: Run) -> Description:
    return Description(
        folder=run.path,
        runs=Path(cfg.paths.runs),
        name=run.path.name,
        job_type="train",
        group=cfg.group,
        tags=tuple(cfg.tags),
        config={**plain(cfg), "provenance": provenance()},
    )


def _quiet() -> None:
    """Silence the advice of Lightning's that does not apply here."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",  # batches are slices of memory
        ".*exists and is not empty.*",  # a run that is continued, which open_run has checked
        ".*your dataloader is not resumable.*",  # EpochPlace makes it so
        ".*The dirpath has changed.*",  # a new run that starts from another's checkpoint
        ".*isinstance.treespec, LeafSpec.*",  # Lightning 2.6 on torch 2.14, which renamed it
    ):
        warnings.filterwarnings("ignore", message=message)
