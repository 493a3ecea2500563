"""Figures of finished runs, as data.

    uv run python -m benchmarks.collect digits runs/NAME runs/NAME
    uv run python -m benchmarks.collect copying runs/sweeps/NAME

reads each run's config.yaml and metrics.jsonl, or a multirun's results.json, and writes
results/digits.json. Call it on the machine that trained, for runs that were not interrupted.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import save
from linear_transformers.runtime.sweeps import table_of
from linear_transformers.runtime.tracking.record import summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="results/<name>.json is written")
    parser.add_argument("runs", type=Path, nargs="+", help="directories of runs or multiruns")
    parser.add_argument("--device", default="cpu", help="what they ran on, of this machine")
    parser.add_argument("--title", help="of the table; unset, Runs on <name>")
    parser.add_argument("--finding", help="what is to be known of it, above the table")
    options = parser.parse_args()
    rows = [row for path in options.runs for row in rows_of(path)]
    title = options.title or f"Runs on {options.name}"
    finding = {"finding": options.finding} if options.finding else {}
    print(save(options.name, options.device, {"title": title, **finding, "rows": rows}))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """One row of a run, one for each job of a multirun."""
    jobs = path / "results.json"
    if not jobs.is_file():
        return [figures(path)]
    table = table_of([job for job in json.loads(jobs.read_text()) if job["status"] == "done"])
    return [{name: value for name, value in row.items() if name != "run"} for row in table]


def figures(run: Path) -> dict[str, Any]:
    """One row: what was trained, how well it does, what it cost."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    model = config["model"]
    sizes = {"layers": "num_layers", "heads": "num_heads", "model_dim": "model_dim"}
    return {
        "attention": model.get("attention", model)["_target_"].rsplit(".", 1)[1],
        **{name: model[key] for name, key in sizes.items() if key in model},
        **summary(run / "metrics.jsonl"),
        **{
            name: round(record[f"baseline/{name}"], 3)  # of images
            for record in records
            for name in ("histogram", "neighbours")
            if f"baseline/{name}" in record
        },
    }


if __name__ == "__main__":
    main()
