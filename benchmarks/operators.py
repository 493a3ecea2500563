"""Causal attention forward and backward: our kernels and those of the peers, side by side.

    uv run python -m benchmarks.operators
    uv run python -m benchmarks.operators --shapes 1x65536 --threads 1 --kernels chunkwise cpp
    uv run python -m benchmarks.operators --device cuda --dtype bfloat16 float32

This measures one layer without projections, from queries, keys and values to outputs, with the
feature map and the normaliser, on random input [batch, length, heads, head_dim]. All kernels run in
this process, in turn, several times over; medians are kept. Kernels that cannot run are named.
Peers, each as its own library calls it: pytorch-fast-transformers (`fast-transformers`: its C++
or CUDA kernel), flash-linear-attention (`fla`: its Triton kernels), and PyTorch's
scaled_dot_product_attention (`sdpa`: FlashAttention on a GPU), which is softmax attention. On a
GPU passes are replayed as captured graphs, so that the device is measured and not its host. In
float32 fla multiplies in tf32, our Triton kernels in three parts of tf32.

Arithmetic and traffic are the least that linear attention needs: 4 c m operations a position and
head forward, three times as many backward; inputs read once, outputs written once. They are given
as shares of this machine's peak, measured before in a large matrix product and a large copy.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from statistics import geometric_mean, median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks import peers
from benchmarks.machine import now, peak_copy
from benchmarks.record import Measurement
from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.callbacks.performance import peak_flops
from linear_transformers.feature_maps import Elu
from linear_transformers.kernels import KERNELS
from linear_transformers.pictures.tables import markdown
from linear_transformers.sampling.captured import capture

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
OURS = ("chunkwise", "cpp", "triton", "cuda")
SDPA = "sdpa"
WIDTH = 108  # columns of the tables
SEED = 0
REPLAYS = 20  # of a graph per timing
PEERS = (peers.FAST_TRANSFORMERS, peers.FLA, SDPA)
PRECISIONS = {"float32": "32", "bfloat16": "bf16", "float16": "16"}
ON_CPU = ("16x784", "4x3072", "1x16384")
ON_GPU = tuple(f"{2 ** (16 - n)}x{2**n}" for n in range(9, 17))


def main() -> None:
    options = parse()
    console = Console()
    console.width = max(console.width, WIDTH)
    name = options.name or f"operators-{torch.device(options.device).type}"
    title = f"Causal attention: {options.heads} heads of {options.head_dim}"
    measurement = Measurement(name, title, device=options.device, seeds=[SEED])
    rows = []
    for dtype in options.dtype:
        for threads in options.threads:
            for shape in options.shapes:
                rows += at_shape(shape, getattr(torch, dtype), threads, options, console)
                # Saved after each shape: a device may be taken away before the last.
                path = measurement.save(rows, summary=summary(rows))
    if found := summary(rows):
        console.print(f"{found['caption']}\n{markdown(found['rows'])}", soft_wrap=True)
    console.print(f"written to {path}", soft_wrap=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", help="batch x length")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--dtype", nargs="+", default=["float32"], choices=PRECISIONS)
    parser.add_argument("--threads", type=int, nargs="+", help="numbers of CPU threads")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kernels", nargs="+", default=[*OURS, *PEERS])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--name", help="the name in results/; unset, by device")
    options = parser.parse_args()
    on_gpu = torch.device(options.device).type == "cuda"
    options.shapes = options.shapes or list(ON_GPU if on_gpu else ON_CPU)
    options.threads = options.threads or ([torch.get_num_threads()] if on_gpu else [1, 2])
    return options


def kernel(name: str, dtype: torch.dtype, options: argparse.Namespace) -> Kernel | str:
    """Return an attention as a function of q, k and v, or why it cannot run."""
    sizes = (options.heads, options.head_dim)
    if name == SDPA:
        return SoftmaxAttention(*sizes)
    device = torch.device(options.device)
    if name in peers.ATTENTIONS:
        reason = peers.unavailable(name, device, dtype)
        return reason or peers.ATTENTIONS[name](options.head_dim)
    if name not in KERNELS:
        raise SystemExit(f"error: {name} is not a kernel. Choose of {[*KERNELS, *PEERS]}.")
    if reason := KERNELS[name].unavailable(device, dtype):
        return reason
    return LinearAttention(*sizes, feature_map=Elu, kernel=name)


def at_shape(
    shape: str,
    dtype: torch.dtype,
    threads: int,
    options: argparse.Namespace,
    console: Console,
) -> list[dict[str, Any]]:
    """Measure every kernel at one shape; print and return the rows."""
    batch, length = map(int, shape.split("x"))
    size, precision = (batch, length, options.heads, options.head_dim), str(dtype).split(".")[1]
    kernels = {name: kernel(name, dtype, options) for name in options.kernels}
    with thread_count(threads):
        arithmetic = peak_flops(torch.device(options.device), PRECISIONS[precision])
        copying = peak_copy(options.device)
        runnable = {name: run for name, run in kernels.items() if not isinstance(run, str)}
        times = measure(runnable, size, dtype, options)
    against = [peer for peer in PEERS if peer in times]
    table = Table(title=f"{batch} x {length}, {precision}, threads: {threads}")
    for column in ("kernel", "forward ms", "backward ms"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for peer in against:
        table.add_column(f"times {peer}", justify="right")
    for column in ("of peak", "of copy"):
        table.add_column(column, justify="right")
    rows = []
    for name, (forward, backward) in times.items():
        row = {
            "batch": batch,
            "length": length,
            "dtype": precision,
            "threads": threads,
            "kernel": name,
            "forward_ms": round(forward, 3),
            "backward_ms": round(backward, 3),
        }
        for peer in against:
            for way, ratio in zip(WAYS, (times[peer][0] / forward, times[peer][1] / backward),
                                  strict=True):  # fmt: skip
                row[ratio_of(peer, way)] = float(f"{ratio:.3g}")
        if name != "parallel" and name != SDPA:
            operations, traffic = least_work(size, dtype.itemsize)
            seconds = (forward + backward) / 1000
            row["share_of_peak"] = round(operations / seconds / arithmetic, 3)
            row["share_of_copy"] = round(traffic / seconds / copying, 3)
        rows.append(row)
        cells = (" ".join(f"{row[ratio_of(peer, way)]:.2f}" for way in WAYS) for peer in against)
        shares = (f"{row[key]:.1%}" if key in row else "" for key in SHARES)
        table.add_row(name, f"{forward:.2f}", f"{backward:.2f}", *cells, *shares)
    console.print(table)
    for name, reason in kernels.items():
        if isinstance(reason, str):
            console.print(f"[dim]{name} is not measured: {reason}[/dim]", soft_wrap=True)
    return rows


WAYS = ("forward", "backward")
SHARES = ("share_of_peak", "share_of_copy")


def ratio_of(peer: str, way: str) -> str:
    """Return the name of the column: how many times as fast as a peer a kernel is."""
    return f"times_{peer.replace('-', '_')}_{way}"


def measure(
    kernels: dict[str, Kernel],
    size: tuple[int, ...],
    dtype: torch.dtype,
    options: argparse.Namespace,
) -> dict[str, tuple[float, float]]:
    """Return the median milliseconds forward and backward of each kernel."""
    torch.manual_seed(SEED)
    make = {"dtype": dtype, "device": options.device}
    inputs = [torch.randn(size, **make).requires_grad_() for _ in range(3)]
    gradient = torch.randn(size, **make)
    calls = {name: passes(run, inputs, gradient, options.device) for name, run in kernels.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for round_ in range(options.rounds + 1):
        for name, call in calls.items():
            forward, both = call()
            if round_:  # the first compiles, and allocates
                times[name].append((1000 * forward, 1000 * (both - forward)))
    return {
        name: (median(f for f, _ in pairs), median(b for _, b in pairs))
        for name, pairs in times.items()
    }


def passes(
    run: Kernel, inputs: list[Tensor], gradient: Tensor, device: str
) -> Callable[[], tuple[float, float]]:
    """Return a function that times a forward pass, and forward and backward, in seconds."""

    def both() -> None:
        torch.autograd.grad(run(*inputs), inputs, gradient)

    def on_cpu() -> tuple[float, float]:
        start = now(device)
        outputs = run(*inputs)
        middle = now(device)
        torch.autograd.grad(outputs, inputs, gradient)
        return middle - start, now(device) - start

    if torch.device(device).type != "cuda":
        return on_cpu
    # Captured: launching takes the host longer than running takes the device.
    graphs = [capture(call, gradient.device) for call in (lambda: run(*inputs), both)]

    def on_gpu() -> tuple[float, float]:
        seconds = []
        for replay in graphs:
            start = now(device)
            for _ in range(REPLAYS):
                replay()
            seconds.append((now(device) - start) / REPLAYS)
        return seconds[0], seconds[1]

    return on_gpu


def least_work(size: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the operations and bytes of a forward and a backward pass of linear attention."""
    positions, width = math.prod(size[:-1]), size[-1]
    forward = 4 * positions * width * width
    # Forward q, k, v to outputs; backward those and the outputs' gradient to three gradients.
    return 4 * forward, (4 + 8) * positions * width * itemsize


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a table of our kernels against each peer, empty if no peer was measured."""
    table = []
    for peer, dtype, name in product(PEERS, dict.fromkeys(row["dtype"] for row in rows), OURS):
        chosen = [row for row in rows if (row["kernel"], row["dtype"]) == (name, dtype)]
        compared = [row for row in chosen if ratio_of(peer, WAYS[0]) in row]
        if compared:
            row = {"times_as_fast_as": peer, "dtype": dtype, "kernel": name}
            row |= {"cases": len(compared)}
            for way in WAYS:
                row |= spread(way, [case[ratio_of(peer, way)] for case in compared])
            table.append(row)
    caption = "Least, most and geometric mean of the ratios over all cases: shapes and threads."
    return {"caption": caption, "rows": table} if table else {}


def spread(way: str, ratios: list[float]) -> dict[str, float]:
    """Return the least, the most and the geometric mean of the ratios of one way."""
    found = {"least": min(ratios), "most": max(ratios), "mean": geometric_mean(ratios)}
    return {f"{way}_{name}": float(f"{ratio:.3g}") for name, ratio in found.items()}


if __name__ == "__main__":
    main()
