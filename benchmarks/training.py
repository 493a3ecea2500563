"""Whole training steps: linear attention, softmax, and the peers' layers, side by side.

    uv run python -m benchmarks.training                     MNIST, CIFAR-10 and the digits
    uv run python -m benchmarks.training --shapes mnist --threads 1 --methods linear softmax
    uv run python -m benchmarks.training --device cuda

A step is the model of the paper (embedding, positions, layers, mixture of logistics) with dropout
0.1: forward, loss, backward, clipped gradients, RAdam. All methods run in this process, in turn,
several times over; medians are kept, and those of the ratios within a round. Peers have our
embedding and head around layers of their own, torch's RAdam as it is by default, and, since all are
in one process, its memory as we set it.

    linear, softmax                   this project, in float32
    linear bfloat16, softmax bfloat16 the same with autocast, where the device is faster in it
    fast-transformers                 pytorch-fast-transformers' causal-linear encoder, which knows
                                      float32 only; see benchmarks/peers.py
    fla                               flash-linear-attention's kernel in our layers, with autocast,
                                      on a GPU

`times_softmax` is beside softmax in the same precision. The share of the peak is of a large matrix
product in that precision, the fastest of those before each round; the operations are those of
matrix products, forward and backward.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import peers
from benchmarks.machine import now, thread_count
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of, usable_device
from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.distributions import LogisticMixture
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.models import AutoregressiveTransformer, Transformer
from linear_transformers.ops.precision import faster_in_bfloat16
from linear_transformers.training.memory import keep_freed_memory
from linear_transformers.training.optimizers import RAdam
from linear_transformers.training.peaks import peak_flops

SEED = 0
NOT_RECTIFIED = 5  # the first steps of RAdam, which cost another time
LINEAR, SOFTMAX = "linear", "softmax"
BFLOAT16 = " bfloat16"
OURS = (LINEAR, LINEAR + BFLOAT16, SOFTMAX, SOFTMAX + BFLOAT16)
METHODS = (*OURS, peers.FAST_TRANSFORMERS, peers.FLA)
ATTENTIONS = {
    LINEAR: partial(LinearAttention, feature_map=Elu),
    SOFTMAX: SoftmaxAttention,
    peers.FLA: peers.FlaLinearAttention,
    peers.FAST_TRANSFORMERS: SoftmaxAttention,  # of a stack whose layers are replaced
}
PRECISIONS = {"float32": "32", "bfloat16": "bf16"}


class Shape(NamedTuple):
    """The sizes of a step: those of the data, and those of the model."""

    batch: int
    length: int
    num_values: int
    layers: int
    heads: int
    model_dim: int
    norm: str = "post"


# The paper's models, in batches that a CPU computes in seconds; and this project's default.
SHAPES = {
    "mnist": Shape(4, 784, 256, 8, 8, 256),
    "cifar10": Shape(1, 3072, 256, 16, 8, 256),
    "digits": Shape(32, 64, 17, 4, 4, 64, "pre"),
}


def main() -> None:
    options = parse()
    keep_freed_memory()
    console = Console()
    device = torch.device(options.device)
    for method in tuple(options.methods):
        if reason := unavailable(method, device):
            console.print(f"[dim]{method} is not measured: {reason}[/dim]", soft_wrap=True)
            options.methods.remove(method)
    if not options.methods:
        raise SystemExit("error: no method can run here. Give other --methods.")
    name = options.name or f"training-{device.type}"
    measurement = Measurement(name, "Training steps", device=options.device, seeds=[SEED])
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        with thread_count(threads):
            for shape in options.shapes:
                rows += measured(shape, threads, options, console)
                measurement.save(rows)  # after each: a device may be taken away
    console.print(f"written to {measurement.path}", soft_wrap=True)


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--shapes", nargs="+", default=[*SHAPES], choices=SHAPES)
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=METHODS)
    parser.add_argument("--batch", type=count, help="the batch size, in place of the shape's")
    parser.add_argument("--threads", type=count, nargs="+", help="numbers of CPU threads")
    parser.add_argument("--rounds", type=count, default=7)
    parser.add_argument("--device", type=usable_device, default="auto")
    parser.add_argument("--name", help="the name in results/; unset, by device")
    options = parser.parse_args()
    most = torch.get_num_threads()
    on_gpu = torch.device(options.device).type == "cuda"
    options.threads = options.threads or ([most] if on_gpu else sorted({1, most}))
    return options


def unavailable(method: str, device: torch.device) -> str | None:
    """Return why a method cannot be measured, or None."""
    if precision_of(method) == "bfloat16" and not faster_in_bfloat16(device):
        return "this device is no faster in bfloat16"
    if method in OURS:
        return None
    return peers.unavailable(method, device, getattr(torch, precision_of(method)))


def precision_of(method: str) -> str:
    """Return the precision of a method's products."""
    return "bfloat16" if method.endswith(BFLOAT16) or method == peers.FLA else "float32"


def measured(
    name: str,
    threads: int,
    options: argparse.Namespace,
    console: Console,
) -> list[dict[str, Any]]:
    """Measure every method at one shape and number of threads; print and return the rows."""
    shape = SHAPES[name]._replace(**({"batch": options.batch} if options.batch else {}))
    device = torch.device(options.device)
    steps = {method: step_of(method, shape, device) for method in options.methods}
    seconds: dict[str, list[float]] = {method: [] for method in steps}
    peaks = {precision_of(method): 0.0 for method in steps}
    for round_ in range(options.rounds + 1):
        for precision, most in peaks.items():
            peaks[precision] = max(most, peak_flops(device, PRECISIONS[precision]))
        for method, step in steps.items():
            start = now(options.device)
            step()
            if round_:  # the first compiles, and allocates
                seconds[method].append(now(options.device) - start)
    rows = []
    for method, step in steps.items():
        time = median(seconds[method])
        row = {
            "shape": name,
            "batch": shape.batch,
            "length": shape.length,
            "threads": threads,
            "method": method,
            "ms_per_step": round(1000 * time, 1),
            "tokens_per_second": round(shape.batch * shape.length / time),
        }
        softmax = SOFTMAX if precision_of(method) == "float32" else SOFTMAX + BFLOAT16
        beside = {
            "times_fast_transformers": peers.FAST_TRANSFORMERS,
            "times_fla": peers.FLA,
            "times_softmax": softmax,
        }
        for heading, peer in beside.items():
            if peer in seconds:
                pairs = zip(seconds[peer], seconds[method], strict=True)
                row[heading] = round(median(theirs / ours for theirs, ours in pairs), 2)
        row["share_of_peak"] = round(flops(step) / time / peaks[precision_of(method)], 3)
        rows.append(row)
    table = Table(
        *list(rows[0])[4:], title=f"{name}: {shape.batch} x {shape.length}, threads: {threads}"
    )
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*(str(value) for value in list(row.values())[4:]))
    console.print(table)
    return rows


def step_of(method: str, shape: Shape, device: torch.device) -> Callable[[], None]:
    """Return a function that makes a training step of a method."""
    torch.manual_seed(SEED)
    model = model_of(method, shape).to(device).train()
    kind = RAdam if method in OURS else torch.optim.RAdam
    optimizer = kind(model.parameters(), lr=1e-4, weight_decay=0.01, decoupled_weight_decay=True)
    for _ in range(NOT_RECTIFIED):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    distribution = LogisticMixture(shape.num_values)
    values = torch.randint(shape.num_values, (shape.batch, shape.length), device=device)
    low = precision_of(method) == "bfloat16"

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=low):
            parameters = model(model.with_start(values)[:, :-1])
            loss = -distribution.log_prob(parameters, values).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def model_of(method: str, shape: Shape) -> AutoregressiveTransformer:
    """Return the model of a method: a peer's layers, between our embedding and our head."""
    stack = Transformer(
        partial(MultiHeadAttention, attention=ATTENTIONS[method.removesuffix(BFLOAT16)]),
        shape.length,
        num_layers=shape.layers,
        num_heads=shape.heads,
        model_dim=shape.model_dim,
        norm=shape.norm,
    )
    model = AutoregressiveTransformer(
        stack,
        num_values=shape.num_values,
        num_parameters=LogisticMixture(shape.num_values).num_parameters,
    )
    if method == peers.FAST_TRANSFORMERS:
        model.stack = peers.FastTransformersStack(stack)  # pyright: ignore
    return model


def flops(step: Callable[[], None]) -> int:
    """Return the operations of a step's matrix products."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


if __name__ == "__main__":
    main()
