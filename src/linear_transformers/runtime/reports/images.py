"""What a finished run of an image model shows: completions, and what counting achieves."""

from pathlib import Path

from lightning import Trainer

from linear_transformers.data import DataModule, ImageDataModule
from linear_transformers.data.baselines import baselines
from linear_transformers.data.masks import mask_of
from linear_transformers.runtime.project import shown
from linear_transformers.runtime.prompts import prompts_of
from linear_transformers.runtime.reports.costs import report_costs
from linear_transformers.runtime.runs import Run, claim_folder
from linear_transformers.runtime.showing import draw_grid, trackers_of
from linear_transformers.runtime.tables import print_table
from linear_transformers.tasks import ImageGeneration, Task

NUM_SAMPLES = 8


def report_images(run: Run, data: DataModule, task: Task, trainer: Trainer) -> list[str]:
    """Complete test images, record what the figure is to be measured against, print it all."""
    assert isinstance(data, ImageDataModule)
    assert isinstance(task, ImageGeneration)
    grid = _complete(run, data, task, trainer)
    tables = baselines(data.splits, data.shape.num_levels)
    for tracker in trackers_of(trainer):
        figures = {f"baseline/{name}": value for name, value in tables._asdict().items()}
        tracker.log_metrics(figures, step=trainer.global_step)
    figure = trainer.callback_metrics["test/bits_per_dim"]
    print_table(
        "test bits/dim",
        ("this model", f"{figure:.3f}", type(task.model.stack.attention).__name__),
        ("histogram", f"{tables.histogram:.3f}", "each position on its own"),
        ("neighbours", f"{tables.neighbours:.3f}", "given the left and upper pixel"),
    )
    report_costs(data, task, trainer)
    return [f"samples  {shown(grid)}"]


def _complete(run: Run, data: ImageDataModule, task: ImageGeneration, trainer: Trainer) -> Path:
    """Complete some test images with the tested weights; the grid that shows them."""
    task.model.eval()
    prompts = prompts_of(data.splits.test[:NUM_SAMPLES], mask_of("bottom", data.shape))
    folder = claim_folder(run.samples / "test", numbered=True)  # a continued run has one
    grid = folder / "grid.png"
    draw_grid(task, prompts, data.shape, seed=0, path=grid)
    for tracker in trackers_of(trainer):
        tracker.log_picture("samples/test", grid, trainer.global_step)
    return grid
