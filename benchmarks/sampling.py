"""Milliseconds a step and images a second: linear attention, softmax, and the peers.

    uv run python -m benchmarks.sampling                     lengths 64, 784 and 3072
    uv run python -m benchmarks.sampling --length 784 --batch 1 --threads 2
    uv run python -m benchmarks.sampling --device cuda --length 784 --batch 1 64 4096 --steps 64

A step samples one value and reads it. Its cost is measured at evenly spaced positions of the
sequence, each method in turn at each position, several times over; the median of each
position is averaged over positions, and images a second follow from that average.

    compiled, compiled bfloat16, compiled int8    linear attention, one C++ call a step, by its
                                   precision
    compiled linear_conv           the same with short convolutions, norm and gate, and as many
                                   parameters: its feed-forward layers are narrower
    captured, captured bfloat16    the same on a GPU: one captured graph a step
    fused, fused bfloat16          the same, compiled by torch.compile before it is captured
    recurrent                      linear attention, the model's own step
    fast-transformers              the same with pytorch-fast-transformers, see benchmarks/peers.py
    compiled softmax               softmax attention with a key-value cache, one C++ call a step
    softmax, cached                softmax attention, the model's own step with a key-value cache
    softmax, recomputed            softmax attention, a whole forward pass a step: once at each
                                   position, with the greatest number of threads only

`times_softmax` compares attentions: with softmax attention in the same program and precision, its
keys and values cached. `times_peer` compares programs. Methods that cannot run are named; those
that do not fit into a GPU's memory beside the others are left out. On a GPU, `share_of_copy` is the
bandwidth of reading and writing the states over that of a large copy.
"""

import argparse
import copy
from functools import partial
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import peak_copy, thread_count
from benchmarks.peers import FAST_TRANSFORMERS, FastTransformersStepper
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of, usable_device
from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.distributions import LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.models import AutoregressiveTransformer, Transformer
from linear_transformers.pictures.tables import markdown
from linear_transformers.sampling import (
    CapturedStepper,
    CompiledStepper,
    FusedStepper,
    RecomputedStepper,
    RecurrentStepper,
    Stepper,
    launches_per_step,
    step_milliseconds,
)

NUM_VALUES = 256
DISTRIBUTION = LogisticMixture(NUM_VALUES)
SEED = 0
Models = dict[str, AutoregressiveTransformer]
CONVOLUTION, SOFTMAX = "compiled linear_conv", "compiled softmax"
RECURRENT, CACHED, RECOMPUTED = "recurrent", "softmax, cached", "softmax, recomputed"
# The stepper of each, the name of its model, and the precision of its weights: None is the model's.
METHODS: dict[str, tuple[type[Stepper], str, str | None]] = {
    "compiled": (CompiledStepper, "linear", "float32"),
    "compiled bfloat16": (CompiledStepper, "linear", "bfloat16"),
    "compiled int8": (CompiledStepper, "linear", "int8"),
    CONVOLUTION: (CompiledStepper, "linear_conv", None),
    SOFTMAX: (CompiledStepper, "softmax", None),
    "captured": (CapturedStepper, "linear", "float32"),
    "captured bfloat16": (CapturedStepper, "linear", "bfloat16"),
    "fused": (FusedStepper, "linear", "float32"),
    "fused bfloat16": (FusedStepper, "linear", "bfloat16"),
    RECURRENT: (RecurrentStepper, "linear", None),
    FAST_TRANSFORMERS: (FastTransformersStepper, "linear", None),
    CACHED: (RecurrentStepper, "softmax", None),
    RECOMPUTED: (RecomputedStepper, "softmax", None),
}
OURS = tuple(method for method in METHODS if method not in {FAST_TRANSFORMERS, CACHED, RECOMPUTED})
GRAPHS = ("captured", "captured bfloat16", "fused", "fused bfloat16")
LINEAR_ON_GPU = (*GRAPHS, RECURRENT)
ON_CPU = tuple(method for method in METHODS if method not in GRAPHS)
ON_GPU = (*LINEAR_ON_GPU, FAST_TRANSFORMERS, CACHED)
# The order in which methods are dropped if memory runs out.
DROPPED = (RECOMPUTED, CACHED, FAST_TRANSFORMERS, RECURRENT, "captured", "fused")
SOFTMAX_OF = {"compiled": SOFTMAX, CONVOLUTION: SOFTMAX, RECURRENT: CACHED}  # in the same program
RATIOS = ("times_peer", "times_softmax")


def main() -> None:
    options = parse(__doc__)
    console = Console()
    leave_out_what_cannot_run(options, console)
    sizes = f"{options.layers} layers of {options.heads} heads, model_dim {options.model_dim}"
    name = options.name or f"sampling-{torch.device(options.device).type}"
    measurement = Measurement(name, f"Sampling: {sizes}", device=options.device, seeds=[SEED])
    launches = count_launches(options)
    rows = []
    for length in options.length:
        for batch in options.batch:
            rows += measured(length, batch, options, launches, console)
            # Saved after each case: a device may be taken away, or run out of memory.
            measurement.save(rows, summary=summary(rows))
    if found := summary(rows):
        console.print(f"{found['caption']}\n{markdown(found['rows'])}", soft_wrap=True)
    console.print(f"written to {measurement.path}", soft_wrap=True)


def leave_out_what_cannot_run(options: argparse.Namespace, console: Console) -> None:
    """Remove the methods that cannot run here, and say why.

    Raises:
        SystemExit: None is left.
    """
    models = build(1, options)
    for method in tuple(options.methods):
        kind, model, precision = stepper_of(method, models)
        if reason := kind.unavailable(model, precision):
            console.print(f"[dim]{method} is not measured: {reason}[/dim]", soft_wrap=True)
            options.methods.remove(method)
    if not options.methods:
        raise SystemExit("error: no method can run here. Give other --methods.")


def measured(
    length: int,
    batch: int,
    options: argparse.Namespace,
    launches: dict[str, int],
    console: Console,
) -> list[dict[str, Any]]:
    """Measure every method at one length and batch size; print and return the rows."""
    table = Table(title=f"{options.layers} layers, {length} values an image, batch {batch}")
    for column in ("threads", "method", "ms a step", "images/s", *RATIOS):
        heading, justify = column.replace("_", " "), "left" if column == "method" else "right"
        table.add_column(heading, justify=justify, no_wrap=column == "method")
    rows = []
    for threads in options.threads:
        with thread_count(threads):
            times, copied = measure(length, batch, options, last=threads == max(options.threads))
        for method, milliseconds in times.items():
            row = {
                "length": length,
                "batch": batch,
                "threads": threads,
                "method": method,
                "precision": METHODS[method][2] or "float32",
                "ms_per_step": round(milliseconds, 3),
                "images_per_second": round(1000 * batch / (milliseconds * length), 4),
                **{name: round(ratio, 3) for name, ratio in ratios(method, times).items()},
            }
            if copied and method in LINEAR_ON_GPU:
                row["share_of_copy"] = round(copied / milliseconds, 3)
            if method in launches:
                row["launches"] = launches[method]
            rows.append(row)
            table.add_row(
                str(threads), method, f"{milliseconds:.2f}", f"{row['images_per_second']:.3g}",
                *(f"{row[name]:.2f} x" if name in row else "" for name in RATIOS),
            )  # fmt: skip
    console.print(table)
    return rows


def ratios(method: str, times: dict[str, float]) -> dict[str, float]:
    """Return how many times as fast as those it is compared with a method is, where they are."""
    references = zip(RATIOS, (FAST_TRANSFORMERS, SOFTMAX_OF.get(method)), strict=True)
    return {name: times[other] / times[method] for name, other in references if other in times}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return tables of our methods against their rivals, empty if none was measured."""
    best: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        times = best.setdefault((row["batch"], row["length"]), {})
        times[row["method"]] = min(row["ms_per_step"], times.get(row["method"], row["ms_per_step"]))
    table = []
    for name, rival in zip(
        RATIOS, (FAST_TRANSFORMERS, "softmax, in the same program"), strict=True
    ):
        for (batch, length), times in sorted(best.items()):
            found = {method: ratios(method, times) for method in OURS if method in times}
            row = {method: round(of[name], 2) for method, of in found.items() if name in of}
            if row:
                table.append({"times_as_fast_as": rival, "batch": batch, "length": length} | row)
    caption = "Each method, and what it is compared with, at its best number of threads."
    return {"caption": caption, "rows": table} if table else {}


def parse(about: str | None, **defaults: Any) -> argparse.Namespace:
    """Return the options.

    Args:
        about: The program's docstring.
        defaults: The defaults that are others than here.
    """
    parser = parser_of(about)
    parser.add_argument("--length", type=count, nargs="+", default=[64, 784, 3072])
    parser.add_argument("--layers", type=count, default=8)
    parser.add_argument("--heads", type=count, default=8)
    parser.add_argument("--model-dim", type=count, default=256)
    parser.add_argument("--batch", type=count, nargs="+", default=[1, 16, 128])
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_argument("--positions", type=count, default=4, help="positions that are measured")
    parser.add_argument("--steps", type=count, default=8, help="consecutive steps per timing")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--threads", type=count, nargs="+", help="numbers of CPU threads")
    parser.add_argument("--device", type=usable_device, default="auto")
    parser.add_argument("--name", help="the name in results/; unset, by device")
    parser.set_defaults(**defaults)
    options = parser.parse_args()
    on_gpu = torch.device(options.device).type == "cuda"
    options.methods = options.methods or list(ON_GPU if on_gpu else ON_CPU)
    most = torch.get_num_threads()
    options.threads = options.threads or ([most] if on_gpu else sorted({1, most}))
    return options


def measure(
    length: int, batch: int, options: argparse.Namespace, *, last: bool
) -> tuple[dict[str, float], float]:
    """Return the mean milliseconds a step of each method, and those that moving the states takes.

    The latter are at the bandwidth of a large copy on a GPU, and 0 on a CPU.
    """
    models = build(length, options)
    methods = [method for method in options.methods if method != RECOMPUTED or last]
    times = {}
    for without in (None, *(method for method in DROPPED if method in methods)):
        methods = [method for method in methods if method != without]
        found = step_times(methods, models, length, batch, options)
        if found is not None:
            times = {method: fmean(by_position.values()) for method, by_position in found.items()}
            break
        torch.cuda.empty_cache()  # only here are the tensors of the last attempt freed
    linear = models["linear"]
    if linear.device.type != "cuda":
        return times, 0.0
    moved = 2 * linear.stack.state_bytes(length) * batch
    return times, 1000 * moved / peak_copy(options.device)


def step_times(
    methods: list[str],
    models: Models,
    length: int,
    batch: int,
    options: argparse.Namespace,
) -> dict[str, dict[int, float]] | None:
    """Return the milliseconds a step of each method by position, or None if memory runs out."""
    if not methods:
        return {}
    try:
        steppers = {}
        for method in methods:
            kind, model, precision = stepper_of(method, models)
            # A precision changes the weights.
            steppers[method] = kind(copy.deepcopy(model) if precision else model, precision)
        return step_milliseconds(
            steppers,
            DISTRIBUTION,
            length=length,
            batch=batch,
            positions=options.positions,
            steps=options.steps,
            rounds=options.rounds,
            once=frozenset({RECOMPUTED}),
        )
    except torch.OutOfMemoryError:
        return None


def stepper_of(
    method: str, models: Models
) -> tuple[type[Stepper], AutoregressiveTransformer, str | None]:
    """Return the kind of a method's stepper, its model, and the precision of its weights."""
    kind, name, precision = METHODS[method]
    return kind, models[name], precision


def count_launches(options: argparse.Namespace) -> dict[str, int]:
    """Return how many kernels and copies a step of each method is on a GPU; nothing on a CPU."""
    if torch.device(options.device).type != "cuda":
        return {}
    counts, length = {}, options.length[0]
    for method in LINEAR_ON_GPU:
        if method in options.methods:
            kind, model, precision = stepper_of(method, build(length, options))
            counts[method] = launches_per_step(kind(model, precision), DISTRIBUTION, length=length)
    return counts


def build(length: int, options: argparse.Namespace) -> Models:
    """Return the models for sequences of a length, by their names in `conf/model`."""
    linear, width = partial(LinearAttention, feature_map=Elu), options.model_dim
    parts = {"short_convolution": 4, "output_norm": True, "output_gate": "silu"}
    mixers = {
        "linear": (partial(MultiHeadAttention, attention=linear), 4 * width),
        "softmax": (partial(MultiHeadAttention, attention=SoftmaxAttention), 4 * width),
        # The gate is as large as an eighth of the feed-forward part, which is narrower by as much.
        "linear_conv": (
            partial(MultiHeadAttention, attention=linear, **parts),
            4 * width - width // 2,
        ),
    }
    models = {}
    for name, (mixer, feedforward_dim) in mixers.items():
        torch.manual_seed(SEED)
        stack = Transformer(
            mixer,
            max_length=length,
            num_layers=options.layers,
            num_heads=options.heads,
            model_dim=width,
            feedforward_dim=feedforward_dim,
        )
        model = AutoregressiveTransformer(
            stack, num_values=NUM_VALUES, num_parameters=DISTRIBUTION.num_parameters
        )
        models[name] = model.to(options.device).eval()
    return models


if __name__ == "__main__":
    main()
