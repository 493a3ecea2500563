"""Bits per byte by the place in a document: who profits from a long past, and who is lost in it.

    uv run --group dev python -m benchmarks.context RUN [NAME=RUN ...] --runs runs

Language models read test documents of their data from their beginnings on, with all of it as their
past. A row is of the bytes since the row before; shorter documents are left out of it. Beyond the
segments that it was trained on, a model is on its own.
"""

import math
from pathlib import Path
from statistics import mode

import numpy as np
import torch

from benchmarks.collect import source_of
from benchmarks.plots import plot
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of, trained_models
from linear_transformers.pictures.tables import markdown
from linear_transformers.runs.folder import folder_of
from linear_transformers.tasks.language_modeling.model import LanguageModel

PLACES = [2**i for i in range(4, 14)]  # bytes from the beginning
DOCUMENTS = 40


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("ckpts", nargs="+", help="runs on the same data, or NAME=RUN")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are")
    parser.add_argument("--documents", type=count, default=DOCUMENTS, help="the longest ones")
    options = parser.parse_args()
    named = [ckpt.rpartition("=") for ckpt in options.ckpts]
    ckpts = [ckpt for _, _, ckpt in named]
    models = trained_models(ckpts, options.runs, LanguageModel, "texts")
    sources = [source_of(folder_of(trained.path)) for trained in models]
    title = "Bits per byte by the place in a document"
    seeds = [source["seed"] for source in sources]
    measurement = Measurement("context", title, device="cpu", seeds=seeds)
    names = [
        given or trained.task.model.stack.mixer_name
        for trained, (given, _, _) in zip(models, named, strict=True)
    ]
    if len({*names}) < len(names):
        raise SystemExit(
            f"error: {mode(names)} is the name of two runs. Give NAME=RUN, for each another."
        )
    curves = {
        name: by_place(trained, options.documents)
        for name, trained in zip(names, models, strict=True)
    }
    rows = [
        {"bytes": place, **{name: round(curve[place], 4) for name, curve in curves.items()}}
        for place in PLACES
        if all(place in curve for curve in curves.values())
    ]
    path = measurement.save(rows, sources=sources)
    picture = plot(
        curves, path.with_suffix(".png"), x_label="bytes from the beginning of a document",
        y_label="bits per byte", log_x=True, log_y=False,
    )  # fmt: skip
    print(f"{markdown(rows)}\n{path}\n{picture}")


def by_place(trained: LanguageModel, count: int) -> dict[int, float]:
    """Return the mean bits per byte since the place before, of the longest documents."""
    documents = trained.data().documents("test")
    pairs = zip(documents.starts, documents.ends, strict=True)
    longest = sorted(pairs, key=lambda pair: pair[0] - pair[1])[:count]
    sums: dict[int, list[np.ndarray]] = {place: [] for place in PLACES}
    for start, end in longest:
        values = np.asarray(documents.tokens[start : min(end - 1, start + PLACES[-1])], np.int64)
        bits = trained.nats(torch.from_numpy(values)).numpy() / math.log(2)
        for before, place in zip([0, *PLACES], PLACES, strict=False):
            if len(bits) >= place:
                sums[place].append(bits[before:place])
    return {place: float(np.concatenate(found).mean()) for place, found in sums.items() if found}


if __name__ == "__main__":
    main()
