"""Milliseconds a step by position in an image: level with a state, rising with a cache.

    uv run --group dev python -m benchmarks.positions
    uv run --group dev python -m benchmarks.positions --length 784 --batch 1 --threads 2

Options, methods and model are those of benchmarks/sampling.py, of which this measures one case.
"""

import torch

from benchmarks import record, sampling
from benchmarks.operators import thread_count
from benchmarks.plots import plot
from benchmarks.record import Measurement
from linear_transformers.pictures.tables import markdown

METHODS = ("compiled", sampling.SOFTMAX, sampling.RECURRENT, sampling.CACHED, sampling.RECOMPUTED)


def main() -> None:
    options = sampling.parse(
        __doc__.splitlines()[0], length=[3072], batch=[16], positions=12, methods=[*METHODS],
        threads=[torch.get_num_threads()],
    )  # fmt: skip
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
    picture = record.RESULTS / f"{name}.png"
    print(plot(found, picture, x_label="position in the image", y_label=f"ms a step of {batch}"))


if __name__ == "__main__":
    main()
