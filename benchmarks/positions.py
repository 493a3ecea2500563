"""Milliseconds a step by position in an image: level with a state, rising with a cache.

    uv run --group dev python -m benchmarks.positions
    uv run --group dev python -m benchmarks.positions --length 784 --batch 1 --threads 2

Options, methods and model are those of benchmarks/sampling.py, of which this measures one case.
"""

from pathlib import Path

import torch
from rich.console import Console

from benchmarks import sampling
from benchmarks.machine import thread_count
from benchmarks.plots import plot
from benchmarks.record import Measurement, Rows
from linear_transformers.pictures.tables import markdown

METHODS = ("compiled", sampling.SOFTMAX, sampling.RECURRENT, sampling.CACHED, sampling.RECOMPUTED)


def main() -> None:
    options = sampling.parse(
        __doc__, length=[3072], batch=[16], positions=12, methods=[*METHODS],
        threads=[torch.get_num_threads()],
    )  # fmt: skip
    for name in ("length", "batch", "threads"):
        if len(given := getattr(options, name)) != 1:
            raise SystemExit(f"error: --{name} was given {given}. Give one number.")
    sampling.leave_out_what_cannot_run(options, Console())
    (length,), (batch,), (threads,) = options.length, options.batch, options.threads
    name = options.name or f"positions-{torch.device(options.device).type}"
    title = f"A step by its position: {length} values an image, {batch} images side by side"
    measurement = Measurement(name, title, device=options.device, seeds=[sampling.SEED])
    with thread_count(threads):
        models = sampling.build(length, options)
        found = sampling.step_times(options.methods, models, length, batch, options)
    if found is None:
        raise SystemExit(f"error: {batch} images do not fit into memory. Give a smaller --batch.")
    positions = next(iter(found.values()))
    rows = [
        {"position": at, **{method: round(times[at], 3) for method, times in found.items()}}
        for at in positions
    ]
    path = measurement.save(rows)
    print(f"{markdown(rows)}\n{path}")
    print(picture(rows, path.with_suffix(".png"), batch))


def picture(rows: Rows, path: Path, batch: int) -> Path:
    """Plot a curve a method, and return the path."""
    methods = [name for name in rows[0] if name != "position"]
    labels = {name: name if "softmax" in name else f"linear, {name}" for name in methods}
    curves = {label: {row["position"]: row[name] for row in rows} for name, label in labels.items()}
    y_label = f"milliseconds a step, {batch} images side by side"
    return plot(curves, path, x_label="position in the image", y_label=y_label)


if __name__ == "__main__":
    main()
