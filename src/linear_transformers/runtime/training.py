"""The job behind train.py: train, test, complete some images, say how it went."""

import logging
import sys
import warnings
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from lightning import Trainer, seed_everything
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from linear_transformers.data import ImageDataModule
from linear_transformers.data.baselines import baselines
from linear_transformers.runtime.build import (
    build_data,
    build_task,
    build_trainer,
    checkpoint_path,
)
from linear_transformers.runtime.checkpoint import load_checkpoint
from linear_transformers.runtime.metrics import MetricsFile
from linear_transformers.runtime.runs import Run, close_run, open_run
from linear_transformers.runtime.sampling import draw, write_samples
from linear_transformers.tasks import ImageGeneration

NUM_SAMPLES = 8


def train(cfg: DictConfig) -> float | None:
    """Run one job. Returns the test figure, which Hydra's sweepers minimise."""
    _quiet()
    choices = HydraConfig.get().runtime.choices
    torch.set_float32_matmul_precision(cfg.matmul_precision)
    seed_everything(cfg.seed, workers=True, verbose=False)
    data = build_data(cfg)
    task = build_task(cfg, data.shape)
    resume = None
    if cfg.ckpt_path is not None:
        resume = _resumable(cfg, task)
    elif not cfg.train and cfg.test:
        raise ValueError("train=false test=true tests a checkpoint: give ckpt_path=RUN_OR_FILE.")
    run = open_run(cfg, label=f"{choices['data']}-{choices['model']}")
    try:
        return _run(cfg, run, data, task, resume)
    finally:
        close_run()


def _run(
    cfg: DictConfig, run: Run, data: ImageDataModule, task: ImageGeneration, resume: Path | None
) -> float | None:
    trainer = build_trainer(cfg, run, data.shape)
    if trainer.is_global_zero:
        _announce(run, data, task, trainer)
    if cfg.compile:
        task.model.compile()
    if cfg.train:
        trainer.fit(task, data, ckpt_path=str(resume) if resume else None)
        if trainer.interrupted:
            sys.exit(130)
    if not cfg.test:
        return None
    tested = run.best_checkpoint() if cfg.train else resume
    assert tested is not None  # _resumable was asked for one
    task.load_state_dict(load_checkpoint(tested)["state_dict"])
    figure = trainer.test(task, data, verbose=False)[0]["test/bits_per_dim"]
    if trainer.is_global_zero:
        _finish(run, data, task, trainer, figure, tested)
    return figure


def _resumable(cfg: DictConfig, task: ImageGeneration) -> Path:
    """The checkpoint to continue from, once it is known to fit the model."""
    path = Path(cfg.ckpt_path)
    run = path if path.is_dir() else Path(cfg.paths.runs) / path
    last = run / "checkpoints" / "last.ckpt"
    path = last if cfg.train and last.is_file() else checkpoint_path(cfg.ckpt_path, run.parent)
    saved = load_checkpoint(path)
    for name, value in saved["config"]["model"].items():
        if value != cfg.model.get(name):
            raise ValueError(
                f"The checkpoint {path} was made with model.{name}={value}, this run has "
                f"model.{name}={cfg.model.get(name)}. Give it the same model."
            )
    shapes = {name: tuple(value.shape) for name, value in saved["state_dict"].items()}
    if shapes != {name: tuple(value.shape) for name, value in task.state_dict().items()}:
        raise ValueError(
            f"The checkpoint {path} was made for other images or another distribution: "
            f"{saved['image_shape']}. Give it the same data and task."
        )
    return path


def _announce(run: Run, data: ImageDataModule, task: ImageGeneration, trainer: Trainer) -> None:
    shape, attention = data.shape, task.model.blocks[0].attention
    parameters = sum(p.numel() for p in task.parameters())
    print(
        f"images   {shape.height} x {shape.width} x {shape.channels}, {shape.num_levels} levels: "
        f"sequences of {shape.length}\n"
        f"model    {len(task.model.blocks)} layers of {type(attention).__name__}, "
        f"{parameters / 1e6:.2f} M parameters, kernel: {attention.kernel}\n"
        f"device   {trainer.world_size} x {trainer.strategy.root_device.type}, "
        f"{torch.get_num_threads()} threads, precision {trainer.precision}\n"
        f"run      {run.path}",
        flush=True,
    )


def _finish(
    run: Run,
    data: ImageDataModule,
    task: ImageGeneration,
    trainer: Trainer,
    figure: float,
    tested: Path,
) -> None:
    """Complete some images with the tested weights, and print the figures side by side."""
    shape, splits = data.shape, data.splits
    tables = baselines(splits, shape.num_levels)
    for logger in trainer.loggers:
        if isinstance(logger, MetricsFile):
            logger.log_metrics(
                {f"baseline/{name}": value for name, value in tables._asdict().items()},
                step=trainer.global_step,
            )
    rows = shape.height // 2
    originals = splits.test[:NUM_SAMPLES]
    drawn = draw(
        task.model.eval(),
        task.distribution,
        shape,
        originals=originals,
        rows=rows,
        count=len(originals),
        batch=NUM_SAMPLES,
        seed=0,
        temperature=1.0,
    )
    folder = run.samples / "test"
    folder.mkdir(exist_ok=True)
    write_samples(drawn.images, originals, shape, rows, folder)

    table = Table(
        title="test bits/dim", title_justify="left", title_style="bold", box=None, show_header=False
    )
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    model = type(task.model.blocks[0].attention).__name__
    table.add_row("this model", f"{figure:.3f}", model)
    table.add_row("histogram", f"{tables.histogram:.3f}", "each position on its own")
    table.add_row("neighbours", f"{tables.neighbours:.3f}", "given the left and upper pixel")
    console = Console(highlight=False, soft_wrap=True)
    console.print()
    console.print(table)
    console.print(f"\nrun      {run.path}")
    console.print(f"samples  {folder / 'grid.png'}")
    console.print(f"next     [bold]uv run sample.py ckpt={_as_argument(run, tested)}[/bold]")


def _as_argument(run: Run, tested: Path) -> str:
    return run.path.name if tested.parent == run.checkpoints else str(tested)


def _quiet() -> None:
    """Silence the advice of Lightning's that does not apply here."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",  # batches are slices of memory
        ".*exists and is not empty.*",  # a run that is continued, which open_run has checked
        ".*isinstance.treespec, LeafSpec.*",  # Lightning 2.6 on torch 2.14, which renamed it
    ):
        warnings.filterwarnings("ignore", message=message)
