"""The cost of bfloat16 or int8 in bits/dim, on the test images of checkpoints.

    uv run python -m benchmarks.precision RUN [RUN ...]
    uv run python -m benchmarks.precision RUN --images 200

The compiled stepper itself (`precision=` of sample.py) reads the images, value by value: what it
rounds is in the figure.
"""

import copy
from math import log
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.collect import source_of
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of, trained_models
from linear_transformers.data.sequences import to_sequences
from linear_transformers.distributions import ValueDistribution
from linear_transformers.pictures.tables import markdown
from linear_transformers.runs.folder import folder_of
from linear_transformers.sampling import CompiledStepper, Stepper
from linear_transformers.shapes import Tokens
from linear_transformers.tasks.image_generation.model import ImageModel

BATCH = 128  # images at a time


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("ckpts", nargs="+", help="runs or checkpoints")
    parser.add_argument("--images", type=count, help="the number of images; unset, all")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are")
    options = parser.parse_args()
    models = trained_models(options.ckpts, options.runs, ImageModel, "images")
    folders = dict.fromkeys(folder_of(trained.path) for trained in models)
    sources = [source_of(folder) for folder in folders]
    seeds = (source["seed"] for source in sources)
    title = "Precision of a compiled step"
    measurement = Measurement("precision", title, device="cpu", seeds=seeds)
    rows = [row for trained in models for row in measured(trained, options.images)]
    path = measurement.save(rows, sources=sources)
    Console().print(f"{markdown(rows)}\nwritten to {path}", soft_wrap=True)


def measured(trained: ImageModel, images: int | None) -> list[dict[str, Any]]:
    """Return the bits/dim of the test images at each precision, and the cost over float32."""
    task, data = trained.task, trained.data()
    values = to_sequences(data.splits.test[:images]).long()
    rows = []
    for precision in CompiledStepper.precisions:
        stepper = CompiledStepper(copy.deepcopy(task.model), precision)
        parts = [stepped_bits(stepper, task.distribution, part) for part in values.split(BATCH)]
        bits = torch.cat(parts).mean().item()
        row = {"data": data.shape.description, "model": task.description}
        row |= {"precision": precision, "images": len(values), "test_bits_per_dim": bits}
        rows.append(row)
    for row in rows:
        row["cost"] = round(row["test_bits_per_dim"] - rows[0]["test_bits_per_dim"], 5)
    return [{**row, "test_bits_per_dim": round(row["test_bits_per_dim"], 5)} for row in rows]


@torch.inference_mode()
def stepped_bits(stepper: Stepper, distribution: ValueDistribution, values: Tokens) -> Tensor:
    """Return the bits/dim of each sequence, read by a stepper value by value."""
    tokens, state = stepper.model.with_start(values)[:, :-1], stepper.model.init_state(len(values))
    bits = torch.zeros(len(values), dtype=torch.float64)
    for read, value in zip(tokens.unbind(1), values.unbind(1), strict=True):
        parameters, state = stepper.step(read, state)
        nats = distribution.log_prob(parameters.unsqueeze(1), value.unsqueeze(1))
        bits -= nats.squeeze(1).double() / log(2)
    return bits / values.shape[1]


if __name__ == "__main__":
    main()
