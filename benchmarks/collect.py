"""Collect the figures of finished runs.

    uv run python -m benchmarks.collect digits runs/NAME runs/NAME
    uv run python -m benchmarks.collect copying runs/sweeps/NAME
    uv run python -m benchmarks.collect transduction --named runs/sort-linear runs/sort-softmax

This reads each run's config.yaml, metrics.jsonl and provenance.json, and a multirun's results.json,
and writes results/digits.json. Call it on the machine that trained, for uninterrupted runs.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from benchmarks.record import Measurement
from benchmarks.usage import parser_of
from linear_transformers.provenance import read_provenance
from linear_transformers.runs.folder import Run
from linear_transformers.runs.metrics import read_metrics, seconds, summary
from linear_transformers.runs.outcomes import table_of

POINTS = 30  # of a learning curve


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("name", help="results/<name>.json is written")
    parser.add_argument("runs", type=Path, nargs="+", help="directories of runs or multiruns")
    parser.add_argument("--device", default="cpu", help="the device that trained")
    parser.add_argument("--title", help="the table's title; unset, Runs on <name>")
    parser.add_argument("--note", help="a note above the table")
    parser.add_argument("--named", action="store_true", help="rows have the names of their runs")
    options = parser.parse_args()
    rows = [row for path in options.runs for row in rows_of(path, named=options.named)]
    sources = [source_of(run) for path in options.runs for run in runs_of(path)]
    title = options.title or f"Runs on {options.name}"
    seeds = (source["seed"] for source in sources)
    measurement = Measurement(options.name, title, device=options.device, seeds=seeds)
    taken = sum(source["seconds"] for source in sources)
    print(measurement.save(rows, seconds=taken, note=options.note, sources=sources))


def rows_of(path: Path, *, named: bool = False) -> list[dict[str, Any]]:
    """Return the row of a run, or the rows of a multirun's finished jobs."""
    many = (path / "results.json").is_file()
    rows = table_of(_done(path)) if many else [{"run": path.name, **figures(path)}]
    return [{name: x for name, x in row.items() if named or name != "run"} for row in rows]


def runs_of(path: Path) -> list[Path]:
    """Return the folders of the runs of these rows."""
    if not (path / "results.json").is_file():
        return [path]
    runs = path.parent.parent  # of runs/sweeps/NAME
    return [runs / job["figures"]["run"] for job in _done(path)]


def _done(multirun: Path) -> list[dict[str, Any]]:
    jobs = json.loads((multirun / "results.json").read_text())
    return [job for job in jobs if job["status"] == "done"]


def figures(run: Path) -> dict[str, Any]:
    """Return a row: the model that was trained, its metrics and its costs."""
    model = _config(run)["model"]
    mixer = model.get("mixer", model)  # a BiLSTM has none, and earlier runs had none
    sizes = {"layers": "num_layers", "heads": "num_heads", "model_dim": "model_dim"}
    return {
        "attention": mixer.get("attention", mixer)["_target_"].rsplit(".", 1)[1],
        **{name: model[key] for name, key in sizes.items() if key in model},
        **summary(Run(run).metrics),
        **{
            name: round(record[f"baseline/{name}"], 3)  # of images
            for record in read_metrics(Run(run).metrics)
            for name in ("histogram", "neighbours")
            if f"baseline/{name}" in record
        },
    }


def source_of(run: Path) -> dict[str, Any]:
    """Return a run's provenance and its learning curves.

    Returns:
        `run`, its name; `seed`; `starts`, the provenance of each of its starts; `seconds`, from
        its first record to its last, pauses between its starts aside; and `curves`, see `curves`.
    """
    records = read_metrics(Run(run).metrics)
    return {
        "run": run.name,
        "seed": _config(run).get("seed"),
        "starts": read_provenance(run),
        "seconds": round(seconds(records), 1),
        "curves": curves(records),
    }


def curves(records: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the thinned curves of each validation metric and of the same metric in training.

    Returns:
        For each name `step` and `value`, of equal length.
    """
    names = dict.fromkeys(name for record in records for name in record if name.startswith("val/"))
    found = {}
    for name in [*names, *(name.replace("val/", "train/") for name in names)]:
        # A run that was continued may have passed a step twice: the later one counts.
        values = {record["step"] or 0: record[name] for record in records if name in record}
        steps = thinned(sorted(values))
        found[name] = {"step": steps, "value": [round(values[step], 4) for step in steps]}
    return {name: curve for name, curve in found.items() if curve["step"]}


def thinned(steps: list[int]) -> list[int]:
    """Return at most POINTS of the steps, evenly spaced, the first and the last among them."""
    if len(steps) <= POINTS:
        return steps
    return [steps[round(i * (len(steps) - 1) / (POINTS - 1))] for i in range(POINTS)]


def _config(run: Path) -> dict[str, Any]:
    path = run / "config.yaml"
    if not path.is_file():
        named = "Name the folder of a run, or of a multirun in runs/sweeps."
        raise SystemExit(f"error: {run} has no config.yaml. {named}")
    return yaml.safe_load(path.read_text())


if __name__ == "__main__":
    main()
