"""Causal attention forward and backward: every kernel of ours and of the peers, side by side.

    uv run python -m benchmarks.operators
    uv run python -m benchmarks.operators --shapes 1x65536 --threads 1 --kernels chunkwise cpp

One layer without projections, from queries, keys and values to outputs, with the feature map and
the normaliser, on random input [batch, length, heads, head_dim]. All kernels run in this process,
each in turn, several times over; medians are kept. Peers are measured where they are installed:
pytorch-fast-transformers (`fast-transformers`: its C++ or CUDA kernel behind its own layer) and
PyTorch's scaled_dot_product_attention (`sdpa`), which is softmax attention.

Arithmetic and traffic are what linear attention cannot do without: 4 c m operations a position and
head forward, three times as many backward; inputs read once, outputs written once. They are given
as shares of what this machine does in a large matrix product and in a large copy, measured before.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import save
from benchmarks.peers import FAST_TRANSFORMERS as PEER
from benchmarks.peers import fast_transformers_attention, installed
from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.runtime.measure import peak_flops

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
OURS = ("chunkwise", "cpp")
QUADRATIC = ("parallel", "sdpa")
PRECISIONS = {"float32": "32", "bfloat16": "bf16", "float16": "16"}
COPIED = 2**28  # bytes: more than any cache holds


def main() -> None:
    options = parse()
    console = Console()
    kernels = {name: make for name in options.kernels if (make := kernel(name, options, console))}
    rows = [
        row
        for threads in options.threads
        for shape in options.shapes
        for row in at_shape(shape, threads, kernels, options, console)
    ]
    measurement = {
        "title": f"Causal attention: {options.heads} heads of {options.head_dim}, {options.dtype}",
        "finding": finding(rows),
        "rows": rows,
    }
    path = save(f"operators-{torch.device(options.device).type}", options.device, measurement)
    console.print(f"{measurement['finding']}\nwritten to {path}", soft_wrap=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shapes", nargs="+", default=["16x784", "4x3072", "1x16384"], help="batch x length"
    )
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--dtype", default="float32", choices=PRECISIONS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kernels", nargs="+", default=[*OURS, PEER, "sdpa"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def kernel(name: str, options: argparse.Namespace, console: Console) -> Kernel | None:
    """An attention as a function of q, k and v; None where it is not installed."""
    sizes = (options.heads, options.head_dim)
    if name == "sdpa":
        return SoftmaxAttention(*sizes)
    if name == PEER:
        return fast_transformers_attention(options.head_dim) if installed(console) else None
    return LinearAttention(*sizes, feature_map=Elu, kernel=name)


def at_shape(
    shape: str,
    threads: int,
    kernels: dict[str, Kernel],
    options: argparse.Namespace,
    console: Console,
) -> list[dict[str, Any]]:
    """Measure every kernel at one shape, and print what was found."""
    batch, length = map(int, shape.split("x"))
    size = (batch, length, options.heads, options.head_dim)
    with thread_count(threads):
        arithmetic = peak_flops(torch.device(options.device), PRECISIONS[options.dtype])
        copying = peak_copy(options.device)
        times = measure(kernels, size, options)
    table = Table(title=f"{batch} x {length}, threads: {threads}")
    against = f"times {PEER}"
    for column in ("kernel", "forward ms", "backward ms", against, "", "of peak", "of copy"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    rows = []
    for name, (forward, backward) in times.items():
        row = {
            "batch": batch,
            "length": length,
            "threads": threads,
            "kernel": name,
            "forward_ms": round(forward, 3),
            "backward_ms": round(backward, 3),
        }
        if PEER in times:
            row["times_peer_forward"] = round(times[PEER][0] / forward, 2)
            row["times_peer_backward"] = round(times[PEER][1] / backward, 2)
        if name not in QUADRATIC:
            operations, traffic = least_work(size, torch.empty(0, dtype=dtype(options)).itemsize)
            seconds = (forward + backward) / 1000
            row["share_of_peak"] = round(operations / seconds / arithmetic, 3)
            row["share_of_copy"] = round(traffic / seconds / copying, 3)
        rows.append(row)
        cells = (f"{row[key]:.2f} x" if key in row else "" for key in RATIOS)
        shares = (f"{row[key]:.1%}" if key in row else "" for key in SHARES)
        table.add_row(name, f"{forward:.2f}", f"{backward:.2f}", *cells, *shares)
    console.print(table)
    return rows


RATIOS = ("times_peer_forward", "times_peer_backward")
SHARES = ("share_of_peak", "share_of_copy")


def measure(
    kernels: dict[str, Kernel], size: tuple[int, ...], options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Median milliseconds forward and backward of each kernel."""
    torch.manual_seed(0)
    make = {"dtype": dtype(options), "device": options.device}
    inputs = [torch.randn(size, **make).requires_grad_() for _ in range(3)]
    gradient = torch.randn(size, **make)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in kernels}
    for round_ in range(options.rounds + 1):
        for name, run in kernels.items():
            start = now(options.device)
            outputs = run(*inputs)
            middle = now(options.device)
            torch.autograd.grad(outputs, inputs, gradient)
            end = now(options.device)
            if round_:  # the first compiles, and makes room
                times[name].append((1000 * (middle - start), 1000 * (end - middle)))
    return {
        name: (median(f for f, _ in pairs), median(b for _, b in pairs))
        for name, pairs in times.items()
    }


def now(device: str) -> float:
    """Seconds, when all that was asked of the device is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def least_work(size: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Operations and bytes of a forward and a backward pass of linear attention."""
    positions, width = math.prod(size[:-1]), size[-1]
    forward = 4 * positions * width * width
    # Forward q, k, v to outputs; backward those and the outputs' gradient to three gradients.
    return 4 * forward, (4 + 8) * positions * width * itemsize


def peak_copy(device: str) -> float:
    """Bytes a second, read and written, of a large copy."""
    source = torch.ones(COPIED // 4, device=device)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(5):
        start = now(device)
        target.copy_(source)
        best = min(best, now(device) - start)
    return 2 * COPIED / best


def dtype(options: argparse.Namespace) -> torch.dtype:
    return getattr(torch, options.dtype)


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def finding(rows: list[dict[str, Any]]) -> str:
    """How our kernels stand to the peer, in words: the least and the mean ratio over shapes."""
    parts = []
    for name in OURS:
        for way in ("forward", "backward"):
            ratios = [row[f"times_peer_{way}"] for row in rows
                      if row["kernel"] == name and f"times_peer_{way}" in row]  # fmt: skip
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                parts.append(
                    f"{name} {way} {min(ratios):.1f} to {max(ratios):.1f} x, mean {mean:.1f} x"
                )
    if not parts:
        return f"{PEER} was not installed."
    return f"As fast as {PEER}, over all shapes and threads: {'; '.join(parts)}."


if __name__ == "__main__":
    main()
