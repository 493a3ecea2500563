"""The cost of bfloat16 or int8 weights in bits/dim, on the test images of checkpoints.

    uv run python -m benchmarks.precision RUN [RUN ...]
    uv run python -m benchmarks.precision RUN --images 200

Weights are rounded as the compiled stepper packs them (`precision=` of sample.py); all
arithmetic is in float32, here as there.
"""

import argparse
import copy
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console

from benchmarks.collect import source_of
from benchmarks.record import Measurement
from linear_transformers.data.sequences import to_sequences
from linear_transformers.pictures.tables import markdown
from linear_transformers.runs.folder import find_checkpoint
from linear_transformers.sampling import CompiledStepper, bits_per_dim
from linear_transformers.tasks import ImageGeneration
from linear_transformers.tasks.base import Trained
from linear_transformers.tasks.loading import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ckpts", nargs="+", help="runs or checkpoints")
    parser.add_argument("--images", type=int, help="the number of images; unset, all")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    paths = [find_checkpoint(ckpt, options.runs) for ckpt in options.ckpts]
    folders = dict.fromkeys(path.parent.parent for path in paths)  # of RUN/checkpoints/FILE
    sources = [source_of(folder) for folder in folders]
    seeds = (source["seed"] for source in sources)
    title = "Precision of weights"
    measurement = Measurement("precision", title, device=options.device, seeds=seeds)
    rows = [
        row for path in paths for row in measured(load(path, device=options.device), options.images)
    ]
    path = measurement.save(rows, sources=sources)
    Console().print(f"{markdown(rows)}\nwritten to {path}", soft_wrap=True)


def measured(trained: Trained, images: int | None) -> list[dict[str, Any]]:
    """Return the bits/dim of the test images at each precision, and the cost over float32."""
    task, data = trained.task, trained.data()
    if not isinstance(task, ImageGeneration):
        raise ValueError(f"{trained.path} is not a model of images; give one that is.")
    values = to_sequences(data.splits.test[:images]).long()
    given = torch.zeros(values.shape[1], dtype=torch.bool)
    rows = []
    for precision in CompiledStepper.precisions:
        model = copy.deepcopy(task.model)
        CompiledStepper.convert(model, precision)
        bits = fmean(bits_per_dim(model, task.distribution, values, given)[0])
        row = {"data": data.shape.description, "model": task.description}
        row |= {"weights": precision, "images": len(values), "test_bits_per_dim": bits}
        rows.append(row)
    for row in rows:
        row["cost"] = round(row["test_bits_per_dim"] - rows[0]["test_bits_per_dim"], 5)
    return [{**row, "test_bits_per_dim": round(row["test_bits_per_dim"], 5)} for row in rows]


if __name__ == "__main__":
    main()
