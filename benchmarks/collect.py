"""Figures of finished runs, as data.

    uv run python -m benchmarks.collect digits runs/NAME runs/NAME

reads each run's config.yaml and metrics.jsonl, and writes results/digits.json. Call it on the
machine that trained, for runs that were not interrupted.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import save
from linear_transformers.runtime.tracking.record import summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="results/<name>.json is written")
    parser.add_argument("runs", type=Path, nargs="+", help="directories of finished runs")
    parser.add_argument("--device", default="cpu", help="what they ran on, of this machine")
    options = parser.parse_args()
    rows = [figures(run) for run in options.runs]
    print(save(options.name, options.device, {"title": f"Runs on {options.name}", "rows": rows}))


def figures(run: Path) -> dict[str, Any]:
    """One row: what was trained, how well it does, what it cost."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    baselines = next(record for record in records if "baseline/histogram" in record)
    model = config["model"]
    return {
        "attention": model["attention"]["_target_"].rsplit(".", 1)[1],
        "layers": model["num_layers"],
        "heads": model["num_heads"],
        "model_dim": model["model_dim"],
        **summary(run / "metrics.jsonl"),
        **{name: round(baselines[f"baseline/{name}"], 3) for name in ("histogram", "neighbours")},
    }


if __name__ == "__main__":
    main()
