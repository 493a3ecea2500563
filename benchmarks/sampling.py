"""Milliseconds a step and images a second: linear, softmax with its cache, softmax without.

    uv run python -m benchmarks.sampling                     the paper's MNIST model
    uv run python -m benchmarks.sampling --length 3072 --layers 16

A step samples one value and reads it. Its cost is measured at evenly spaced positions of the
sequence, each method in turn at each position, several times over; the median of each
position is averaged over positions, and images a second follow from that average.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import mean, median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import save
from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.distributions import LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.models import AutoregressiveTransformer

NUM_VALUES = 256
REFERENCE = "softmax, cached"


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    console = Console()
    table = Table(title=f"{options.layers} layers, {options.length} values an image")
    for column in ("batch", "method", "ms a step", "images/s", f"against {REFERENCE}"):
        table.add_column(column, justify="left" if column == "method" else "right")
    rows = []
    for batch in options.batch:
        times = measure(batch, options)
        for method, milliseconds in times.items():
            row = {
                "batch": batch,
                "method": method,
                "ms_per_step": round(milliseconds, 3),
                "images_per_second": round(1000 * batch / (milliseconds * options.length), 4),
                "times_cached_softmax": round(times[REFERENCE] / milliseconds, 3),
            }
            rows.append(row)
            table.add_row(
                str(batch), method, f"{milliseconds:.2f}", f"{row['images_per_second']:.3g}",
                f"{row['times_cached_softmax']:.2f} x",
            )  # fmt: skip
    console.print(table)
    title = (
        f"Sampling: {options.layers} layers of {options.heads} heads, "
        f"model_dim {options.model_dim}, {options.length} values an image"
    )
    name = f"sampling-{torch.device(options.device).type}-{options.length}"
    path = save(name, options.device, {"title": title, "rows": rows})
    console.print(f"written to {path}", soft_wrap=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=784, help="values an image")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--model-dim", type=int, default=256)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--positions", type=int, default=8, help="where steps are measured")
    parser.add_argument("--steps", type=int, default=8, help="consecutive steps a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


@torch.inference_mode()
def measure(batch: int, options: argparse.Namespace) -> dict[str, float]:
    """Mean milliseconds a step of each method over the sequence."""
    distribution = LogisticMixture(NUM_VALUES)
    linear = build(partial(LinearAttention, feature_map=Elu), distribution, options)
    softmax = build(SoftmaxAttention, distribution, options)
    methods = {
        "linear": partial(with_state, linear),
        REFERENCE: partial(with_state, softmax),
        "softmax, no cache": partial(without_state, softmax),
    }
    gaps = options.positions * 2
    positions = [options.length * i // gaps for i in range(1, gaps, 2)]
    medians: dict[str, list[float]] = {method: [] for method in methods}
    for position in positions:
        values = torch.randint(NUM_VALUES, (batch, position), device=options.device)
        noise = torch.rand(options.steps + 1, batch, 2, device=options.device)
        loops = {name: start(values) for name, start in methods.items()}
        times: dict[str, list[float]] = {method: [] for method in methods}
        for _ in range(options.rounds):
            for name, step in loops.items():
                # The paper's slow baseline costs a whole forward pass a step: one will do.
                count = 1 if name == "softmax, no cache" else options.steps
                step(distribution, noise[0])  # not counted: it fills the caches
                synchronize(options.device)
                begin = time.perf_counter()
                for i in range(count):
                    step(distribution, noise[i + 1])
                synchronize(options.device)
                times[name].append(1000 * (time.perf_counter() - begin) / count)
        for name, found in times.items():
            medians[name].append(median(found))
    return {name: mean(found) for name, found in medians.items()}


def build(attention, distribution: LogisticMixture, options: argparse.Namespace):
    torch.manual_seed(0)
    model = AutoregressiveTransformer(
        attention,
        num_values=NUM_VALUES,
        # Room for the steps that are timed at the last position.
        max_length=options.length + options.rounds * (options.steps + 1),
        num_parameters=distribution.num_parameters,
        num_layers=options.layers,
        num_heads=options.heads,
        model_dim=options.model_dim,
    )
    return model.to(options.device).eval()


Step = Callable[[LogisticMixture, Tensor], None]


def with_state(model: AutoregressiveTransformer, values: Tensor) -> Step:
    """Sample a value from the last output, and step; every call goes one position further."""
    outputs, state = model.prefill(model.with_start(values))
    last = outputs[:, -1]

    def step(distribution: LogisticMixture, noise: Tensor) -> None:
        nonlocal last, state
        last, state = model.step(distribution.sample(last, noise), state)

    return step


def without_state(model: AutoregressiveTransformer, values: Tensor) -> Step:
    """Sample a value, and recompute the whole sequence with it."""
    last = model(model.with_start(values))[:, -1]

    def step(distribution: LogisticMixture, noise: Tensor) -> None:
        nonlocal last
        value = distribution.sample(last, noise).unsqueeze(1)
        last = model(model.with_start(torch.cat([values, value], dim=1)))[:, -1]

    return step


def synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
