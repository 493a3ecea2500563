"""A workspace of W&B for a group of runs: curves with their spread, pictures by step, the sweep.

    uv run --extra dashboards python -m linear_transformers.tracking.dashboard RUN --entity ME

Its panels are of the names that RUN has logged, and its runs are those of RUN's group: of a
multirun, all. Nothing is sent before everything is put together.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb
import yaml

from linear_transformers.calls import call_with
from linear_transformers.config.messages import first_line
from linear_transformers.runs.folder import Run
from linear_transformers.runs.metrics import read_metrics
from linear_transformers.tracking.wandb import STEP

MODEL = "choices.model"
PICTURES = ("samples/generated", "samples/completed", "samples/test", "samples/attention")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="a run of the group: its name or folder")
    parser.add_argument("--entity", required=True, help="the user or team at W&B")
    parser.add_argument("--project", default="linear-transformers")
    parser.add_argument("--by", default=MODEL, help="the key of the configuration to average over")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are")
    options = parser.parse_args(arguments)
    folder = next((x for x in (options.runs / options.run, Path(options.run)) if x.is_dir()), None)
    if folder is None:
        raise SystemExit(f"error: {options.run} is no run, neither in {options.runs} nor a folder.")
    try:
        view = workspace(folder, entity=options.entity, project=options.project, by=options.by)
        view.save()
    except (ValueError, wandb.Error) as error:
        raise SystemExit(f"error: {first_line(error)}.") from error
    print(view.url)


def workspace(folder: Path, *, entity: str, project: str, by: str = MODEL) -> Any:
    """Return the workspace of a run's group, which its `save` sends.

    Args:
        folder: The folder of the run.
        entity: The user or team.
        project: The project.
        by: The key of the configuration whose values are averaged over: a curve for each.

    Raises:
        ValueError: wandb-workspaces is not installed, or the run has logged nothing.
    """
    try:
        import wandb_workspaces.reports.v2 as panels
        import wandb_workspaces.workspaces as workspaces
    except ModuleNotFoundError as error:
        raise ValueError(
            f"A dashboard needs wandb-workspaces: `{call_with('dashboards')}`."
        ) from error
    rows = read_metrics(Run(folder).metrics)
    if not rows:
        raise ValueError(f"{folder}/metrics.jsonl has no records, so there is nothing to plot.")
    if not (configurations := [*Run(folder).configurations.values()]):
        raise ValueError(f"{folder} has no configuration, so its group is unknown.")
    group = yaml.safe_load(configurations[-1].read_text())["group"]
    values = (pair for row in rows for pair in row.items())
    numbers = dict.fromkeys(name for name, value in values if isinstance(value, int | float))

    spread = {
        "groupby": panels.Config(by),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
    }

    def of(*beginnings: str) -> list[str]:
        return [name for name in numbers if name.startswith(beginnings)]

    def curves(*beginnings: str) -> list[Any]:
        return [panels.LinePlot(title=x, x=STEP, y=[x], **spread) for x in of(*beginnings)]

    tests = of("test/")
    pictures = panels.MediaBrowser(
        media_keys=list(PICTURES), mode="grid", grid_x_axis="step", grid_y_axis="run"
    )
    axes = [panels.Config(by), panels.Config("seed"), *map(panels.SummaryMetric, tests)]
    columns = [panels.ParallelCoordinatesPlotColumn(axis) for axis in axes]  # pyright: ignore
    sections = {
        "Validation": curves("val/"),
        "Test": [panels.BarPlot(title=name, metrics=[name], **spread) for name in tests],
        "Pictures": [pictures],
        "Training": curves("train/", "lr-"),
        "Speed": curves("perf/"),
        "Sweep": [panels.ParallelCoordinatesPlot(columns=columns)],
    }
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=f"{group}: curves, pictures, sweep",
        sections=[
            workspaces.Section(name=name, panels=found, is_open=name != "Speed")
            for name, found in sections.items()
            if found
        ],
        runset_settings=workspaces.RunsetSettings(
            filters=f"Group = '{group}'", groupby=[workspaces.Config(by)]
        ),
    )


if __name__ == "__main__":
    main()
