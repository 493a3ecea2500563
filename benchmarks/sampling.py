"""Milliseconds a step and images a second: linear, softmax with its cache, softmax without.

    uv run python -m benchmarks.sampling                     lengths 64, 784 and 3072
    uv run python -m benchmarks.sampling --length 784 --batch 1

A step samples one value and reads it. Its cost is measured at evenly spaced positions of the
sequence, each method in turn at each position, several times over; the median of each
position is averaged over positions, and images a second follow from that average. Without
a cache a step is a whole forward pass, and is taken once at each position.
"""

import argparse
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import save
from linear_transformers.attention import AttentionFactory, LinearAttention, SoftmaxAttention
from linear_transformers.distributions import LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.models import AutoregressiveTransformer, Transformer
from linear_transformers.sampling import Recomputed, step_milliseconds

NUM_VALUES = 256
REFERENCE, RECOMPUTED = "softmax, cached", "softmax, no cache"


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    console = Console()
    rows = [row for length in options.length for row in at_length(length, options, console)]
    model = f"{options.layers} layers of {options.heads} heads, model_dim {options.model_dim}"
    name = f"sampling-{torch.device(options.device).type}"
    measurement = {"title": f"Sampling: {model}", "finding": finding(rows), "rows": rows}
    path = save(name, options.device, measurement)
    console.print(f"written to {path}", soft_wrap=True)


def at_length(length: int, options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure every batch size at one length, and print what was found."""
    table = Table(title=f"{options.layers} layers, {length} values an image")
    for column in ("batch", "method", "ms a step", "images/s", f"against {REFERENCE}"):
        table.add_column(column, justify="left" if column == "method" else "right")
    rows = []
    for batch in options.batch:
        times = measure(length, batch, options)
        for method, milliseconds in times.items():
            row = {
                "length": length,
                "batch": batch,
                "method": method,
                "ms_per_step": round(milliseconds, 3),
                "images_per_second": round(1000 * batch / (milliseconds * length), 4),
                "times_cached_softmax": round(times[REFERENCE] / milliseconds, 3),
            }
            rows.append(row)
            table.add_row(
                str(batch), method, f"{milliseconds:.2f}", f"{row['images_per_second']:.3g}",
                f"{row['times_cached_softmax']:.2f} x",
            )  # fmt: skip
    console.print(table)
    return rows


def finding(rows: list[dict[str, Any]]) -> str:
    """How the ratio of linear attention to its rival grows with length, in words."""
    by_batch: dict[int, dict[int, float]] = {}
    for row in rows:
        if row["method"] == "linear":
            by_batch.setdefault(row["batch"], {})[row["length"]] = row["times_cached_softmax"]
    parts = []
    for batch, ratios in by_batch.items():
        growth = ratios[max(ratios)] / ratios[min(ratios)]
        each = ", ".join(f"{ratio:.2f} x at {length}" for length, ratio in sorted(ratios.items()))
        parts.append(f"batch {batch}: {each} ({growth:.1f} times as much)")
    return f"Linear attention against {REFERENCE}, by values an image. " + "; ".join(parts) + "."


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, nargs="+", default=[64, 784, 3072])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--model-dim", type=int, default=256)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--positions", type=int, default=4, help="where steps are measured")
    parser.add_argument("--steps", type=int, default=8, help="consecutive steps a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def measure(length: int, batch: int, options: argparse.Namespace) -> dict[str, float]:
    """Mean milliseconds a step of each method over the sequence."""
    distribution = LogisticMixture(NUM_VALUES)
    linear = build(partial(LinearAttention, feature_map=Elu), distribution, length, options)
    softmax = build(SoftmaxAttention, distribution, length, options)
    decoders = {"linear": linear, REFERENCE: softmax, RECOMPUTED: Recomputed(softmax)}
    return step_milliseconds(
        decoders,
        distribution,
        length=length,
        batch=batch,
        positions=options.positions,
        steps=options.steps,
        rounds=options.rounds,
        once=frozenset({RECOMPUTED}),
    )


def build(
    attention: AttentionFactory,
    distribution: LogisticMixture,
    length: int,
    options: argparse.Namespace,
) -> AutoregressiveTransformer:
    torch.manual_seed(0)
    stack = Transformer(
        attention,
        max_length=length,
        num_layers=options.layers,
        num_heads=options.heads,
        model_dim=options.model_dim,
    )
    model = AutoregressiveTransformer(
        stack, num_values=NUM_VALUES, num_parameters=distribution.num_parameters
    )
    return model.to(options.device).eval()


if __name__ == "__main__":
    main()
