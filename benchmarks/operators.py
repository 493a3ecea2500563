"""Causal attention forward and backward: our kernels and those of the peers, side by side.

    uv run python -m benchmarks.operators
    uv run python -m benchmarks.operators --shapes 1x65536 --threads 1 --kernels chunkwise cpp
    uv run python -m benchmarks.operators --device cuda --dtype bfloat16 float32
    uv run python -m benchmarks.operators --device cuda --kernels triton triton@warps=4,stages=3

This measures one layer without projections, from queries, keys and values to outputs, with the
feature map and the normaliser, on random input [batch, length, heads, head_dim]. Peers, each as
its own library calls it: pytorch-fast-transformers (`fast-transformers`: its C++ or CUDA kernel),
flash-linear-attention (`fla`: its Triton kernels), and PyTorch's scaled_dot_product_attention
(`sdpa`: FlashAttention on a GPU), which is softmax attention. In float32 fla multiplies in tf32,
our Triton kernels in three parts of tf32. `triton@...` is our kernel compiled in another way: any
of `chunk`, `block`, `warps`, `stages` and `programs` (see `triton_linear.Launch`).

On a CPU all kernels run in this process, in turn, several times over; medians are kept. On a GPU
(`--apart`) each has a process of its own, so that one that fails loses nothing but itself: its
rows hold the error. Passes are then replayed as captured graphs, so that the device is measured
and not its host, and go through as many inputs as no cache holds. Rows are saved after each.

Arithmetic and traffic are the least that linear attention needs: 4 c m operations a position and
head forward, three times as many backward; inputs read once, outputs written once. They are given
as shares of this machine's peak, measured before in a large matrix product and a large copy.
"""

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks import peers
from benchmarks.apart import run_apart
from benchmarks.machine import now, peak_copy, thread_count
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of, usable_device
from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.kernels import KERNELS
from linear_transformers.pictures.tables import markdown
from linear_transformers.sampling.captured import capture
from linear_transformers.training.peaks import peak_flops

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
Row = dict[str, Any]
OURS = ("chunkwise", "cpp", "triton")
SDPA = "sdpa"
WIDTH = 108  # columns of the tables
SEED = 0
REPLAYS = 5  # of a graph per timing
CACHES = 3  # times the second-level cache: what the inputs of a graph are to fill
PEERS = (peers.FAST_TRANSFORMERS, peers.FLA, SDPA)
PRECISIONS = {"float32": "32", "bfloat16": "bf16", "float16": "16"}
ON_CPU = ("16x784", "4x3072", "1x16384")
PAPER = ("16x784", "4x3072")
LONGEST = "1x1048576"
ON_GPU = (*PAPER, *(f"{2 ** (16 - n)}x{2**n}" for n in range(9, 17)), LONGEST)
# fla tries 48 ways to compile for each batch size and length, for minutes.
TUNED = {peers.FLA: (*PAPER, "1x65536")}
# Of a kernel's name: how it is compiled.
CHANGE = r"(?:chunk|block|warps|stages|programs)=[1-9]\d*"
CHANGES = re.compile(f"{CHANGE}(?:,{CHANGE})*")
SECONDS = 60  # of a process; of one that tunes, four times as many


class Case(NamedTuple):
    """What is measured at once: kernels at a shape, in a type, on some threads."""

    shape: str
    dtype: str
    threads: int

    @property
    def about(self) -> Row:
        batch, length = map(int, self.shape.split("x"))
        return {"batch": batch, "length": length, "dtype": self.dtype, "threads": self.threads}


def main() -> None:
    options = parse()
    if options.child:
        child(options)
        return
    console = Console()
    console.width = max(console.width, WIDTH)
    name = options.name or f"operators-{torch.device(options.device).type}"
    title = f"Causal attention: {options.heads} heads of {options.head_dim}"
    measurement = Measurement(name, title, device=options.device, seeds=[SEED])
    cases = [
        Case(shape, dtype, threads)
        for dtype, threads, shape in product(options.dtype, options.threads, options.shapes)
    ]
    peaks = {(case.dtype, case.threads): peak(case, options) for case in cases}
    found, rows = list[Row](), list[Row]()
    for times in (apart if options.apart else together)(cases, options):
        found.append(times)
        # Saved after each: a device may be taken away before the last.
        rows = compared(found, peaks, options)
        measurement.save(rows, summary=summary(rows))
    if not found:
        raise SystemExit("error: none of these kernels is measured in such a case. Give --shapes.")
    for case in cases:
        show([row for row in rows if case.about.items() <= row.items()], case, console)
    if table := summary(rows):
        console.print(f"{table['caption']}\n{markdown(table['rows'])}", soft_wrap=True)
    console.print(f"written to {measurement.path}", soft_wrap=True)


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--shapes", type=shape, nargs="+", help="batch x length")
    parser.add_argument("--heads", type=count, default=8)
    parser.add_argument("--head-dim", type=count, default=32)
    parser.add_argument("--dtype", nargs="+", default=["float32"], choices=PRECISIONS)
    parser.add_argument("--threads", type=count, nargs="+", help="numbers of CPU threads")
    parser.add_argument("--rounds", type=count, default=7)
    parser.add_argument("--kernels", nargs="+", default=[*OURS, SDPA, *PEERS[:2]])
    parser.add_argument("--device", type=usable_device, default="auto")
    parser.add_argument("--apart", action="store_true", help="a process for each, as on a GPU")
    parser.add_argument("--seconds", type=int, default=420, help="of all processes together")
    parser.add_argument("--name", help="the name in results/; unset, by device")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    on_gpu = torch.device(options.device).type == "cuda"
    options.apart |= on_gpu
    options.shapes = options.shapes or list(ON_GPU if on_gpu else ON_CPU)
    options.threads = options.threads or ([torch.get_num_threads()] if on_gpu else [1, 2])
    for name in options.kernels:
        check(name)
    return options


def shape(text: str) -> str:
    """Return a shape of the command line.

    Raises:
        ArgumentTypeError: It is no batch and length.
    """
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not BATCHxLENGTH")
    return text


def check(name: str) -> None:
    """Refuse a kernel that is unknown, or that cannot be compiled as it says.

    Raises:
        SystemExit: There is no such kernel, or none with such changes.
    """
    base, _, changes = name.partition("@")
    if base not in (*KERNELS, *PEERS):
        raise SystemExit(f"error: {name} is not a kernel. Choose of {[*KERNELS, *PEERS]}.")
    if "@" in name and not (base == "triton" and CHANGES.fullmatch(changes)):
        raise SystemExit(
            f"error: {name} is not a kernel. Write triton@warps=4,stages=3: chunk, block, warps, "
            "stages or programs, and numbers."
        )


def kernel(name: str, dtype: torch.dtype, options: argparse.Namespace) -> Kernel | str:
    """Return an attention as a function of q, k and v, or why it cannot run."""
    sizes = (options.heads, options.head_dim)
    if name == SDPA:
        return SoftmaxAttention(*sizes)
    device = torch.device(options.device)
    if name in peers.ATTENTIONS:
        reason = peers.unavailable(name, device, dtype)
        return reason or peers.ATTENTIONS[name](options.head_dim)
    name, _, changes = name.partition("@")
    if reason := KERNELS[name].unavailable(device, dtype):
        return reason
    if changes:
        compile_with({key: int(value) for key, value in (x.split("=") for x in changes.split(","))})
    return LinearAttention(*sizes, feature_map=Elu, kernel=name)


def compile_with(changes: dict[str, int]) -> None:
    """Compile our Triton kernels in another way, in all of this process."""
    from linear_transformers.kernels import triton_linear

    for launches in (triton_linear.HALF, triton_linear.SINGLE):
        launches.update({width: each._replace(**changes) for width, each in launches.items()})


def together(cases: list[Case], options: argparse.Namespace) -> Iterator[Row]:
    """Yield the times of all kernels at each case, which take turns."""
    for case in cases:
        dtype = getattr(torch, case.dtype)
        kernels = {name: kernel(name, dtype, options) for name in options.kernels}
        runnable = {name: run for name, run in kernels.items() if not isinstance(run, str)}
        with thread_count(case.threads):
            times = measure(runnable, case, options)
        for name, reason in kernels.items():
            row = {**case.about, "kernel": name}
            yield row | ({"error": reason} if isinstance(reason, str) else times[name])


def apart(cases: list[Case], options: argparse.Namespace) -> Iterator[Row]:
    """Yield the times of each kernel at each case, from a process for each kernel and type.

    A process that dies, or takes too long, fails at one case; another one goes on with the next.
    """
    end = time.monotonic() + options.seconds
    for name in options.kernels:  # peers that tune come last
        for dtype, threads in dict.fromkeys((case.dtype, case.threads) for case in cases):
            left = [case for case in cases if (case.dtype, case.threads) == (dtype, threads)]
            if options.shapes == [*ON_GPU]:  # nobody named them
                left = [case for case in left if usual(name, case)]
            while left:
                rows, failure = started(name, left, min(end, deadline(name)), options)
                yield from rows
                left = left[len(rows) :]
                if left:
                    assert failure
                    yield {**left.pop(0).about, "kernel": name, "error": failure}


def usual(name: str, case: Case) -> bool:
    """Return whether a kernel is measured at one of a GPU's shapes unless they are named."""
    if name in TUNED:
        return case.shape in TUNED[name] and case.dtype != "float32"
    return case.shape != LONGEST or name.partition("@")[0] == "triton"  # others take minutes


def deadline(name: str) -> float:
    return time.monotonic() + SECONDS * (4 if name in TUNED else 1)


def started(
    name: str, cases: list[Case], end: float, options: argparse.Namespace
) -> tuple[list[Row], str | None]:
    """Measure a kernel in a process of its own.

    Returns:
        The rows of the first cases, and why there are not all of them.
    """
    seconds = end - time.monotonic()
    if seconds < 1:
        return [], "the time of all processes was up"
    command = [
        sys.executable, "-m", "benchmarks.operators", "--child", "--kernels", name,
        "--shapes", *(case.shape for case in cases), "--dtype", cases[0].dtype,
        "--threads", str(cases[0].threads), "--rounds", str(options.rounds),
        "--heads", str(options.heads), "--head-dim", str(options.head_dim),
        "--device", options.device,
    ]  # fmt: skip
    printed, failure = run_apart(command, seconds=seconds)
    # A line that a killed process has only begun is no row.
    lines = [line for line in printed.splitlines() if line.startswith("{") and line.endswith("}")]
    return [json.loads(line) for line in lines], failure


def child(options: argparse.Namespace) -> None:
    """Print the times of one kernel at each case, one line of JSON each."""
    (name,), (dtype,), (threads,) = options.kernels, options.dtype, options.threads
    run = kernel(name, getattr(torch, dtype), options)
    for shape in options.shapes:
        case = Case(shape, dtype, threads)
        row = {**case.about, "kernel": name}
        if isinstance(run, str):
            row["error"] = run
        else:
            with thread_count(threads):
                try:
                    row |= measure({name: run}, case, options)[name]
                except (torch.OutOfMemoryError, ValueError) as error:
                    row["error"] = str(error).splitlines()[0]
        print(json.dumps(row), flush=True)


def peak(case: Case, options: argparse.Namespace) -> tuple[float, float]:
    """Return the machine's FLOPs and bytes a second."""
    with thread_count(case.threads):
        device = torch.device(options.device)
        return peak_flops(device, PRECISIONS[case.dtype]), peak_copy(options.device)


def compared(
    found: list[Row], peaks: dict[Any, tuple[float, float]], options: argparse.Namespace
) -> list[Row]:
    """Return the rows with how many times as fast as each peer a kernel is, and its shares."""
    beside = [row for row in found if row["kernel"] in PEERS and "error" not in row]
    return [
        row if "error" in row else row | ratios(row, beside) | shares(row, peaks, options)
        for row in found
    ]


def ratios(row: Row, beside: list[Row]) -> Row:
    """Return how many times as fast as each peer at the same case a kernel is, both ways."""
    case = {key: row[key] for key in ("batch", "length", "dtype", "threads")}
    return {
        ratio_of(peer["kernel"], way): float(f"{peer[f'{way}_ms'] / row[f'{way}_ms']:.3g}")
        for peer in beside
        if case.items() <= peer.items()
        for way in WAYS
    }


def shares(
    row: Row, peaks: dict[Any, tuple[float, float]], options: argparse.Namespace
) -> dict[str, float]:
    """Return a kernel's shares of the machine's peaks; nothing if its least work is another."""
    if row["kernel"] in (SDPA, "parallel"):
        return {}
    size = (row["batch"], row["length"], options.heads, options.head_dim)
    operations, traffic = least_work(size, getattr(torch, row["dtype"]).itemsize)
    arithmetic, copying = peaks[row["dtype"], row["threads"]]
    seconds = (row["forward_ms"] + row["backward_ms"]) / 1000
    of = operations / seconds / arithmetic, traffic / seconds / copying
    return {name: round(share, 4) for name, share in zip(SHARES, of, strict=True)}


def show(rows: list[Row], case: Case, console: Console) -> None:
    """Print a table of a case, and what was not measured."""
    against = [peer for peer in PEERS if any(ratio_of(peer, WAYS[0]) in row for row in rows)]
    title = f"{case.shape.replace('x', ' x ')}, {case.dtype}, threads: {case.threads}"
    table = Table(title=title)
    for column in ("kernel", "forward ms", "backward ms"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for peer in against:
        table.add_column(f"times {peer}", justify="right")
    for column in ("of peak", "of copy"):
        table.add_column(column, justify="right")
    for row in rows:
        if "error" in row:
            continue
        times = (f"{row[f'{way}_ms']:.4g}" for way in WAYS)
        cells = (" ".join(f"{row[ratio_of(peer, way)]:.2f}" for way in WAYS) for peer in against)
        shares = (f"{row[key]:.1%}" if key in row else "" for key in SHARES)
        table.add_row(row["kernel"], *times, *cells, *shares)
    console.print(table)
    for row in rows:
        if "error" in row:
            console.print(
                f"[dim]{row['kernel']} is not measured: {row['error']}[/dim]", soft_wrap=True
            )


WAYS = ("forward", "backward")
SHARES = ("share_of_peak", "share_of_copy")


def ratio_of(peer: str, way: str) -> str:
    """Return the name of the column: how many times as fast as a peer a kernel is."""
    return f"times_{peer.replace('-', '_')}_{way}"


def measure(
    kernels: dict[str, Kernel], case: Case, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return the median milliseconds forward and backward of each kernel."""
    about = case.about
    size = (about["batch"], about["length"], options.heads, options.head_dim)
    dtype, device = getattr(torch, case.dtype), torch.device(options.device)
    torch.manual_seed(SEED)
    sets = [
        [torch.randn(size, dtype=dtype, device=device) for _ in range(4)]
        for _ in range(number_of_sets(size, dtype, device))
    ]
    calls = {name: passes(run, sets) for name, run in kernels.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for round_ in range(options.rounds + 1):
        for name, call in calls.items():
            forward, both = call()
            if round_:  # the first compiles, and allocates
                times[name].append((1000 * forward, 1000 * (both - forward)))
    return {
        name: {
            f"{way}_ms": float(f"{median(pair[i] for pair in pairs):.4g}")
            for i, way in enumerate(WAYS)
        }
        for name, pairs in times.items()
    }


def number_of_sets(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> int:
    """Return how many inputs no cache of a GPU holds: q, k, v, outputs and all gradients."""
    if device.type != "cuda":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return max(1, math.ceil(CACHES * cache / (8 * math.prod(size) * dtype.itemsize)))


def passes(run: Kernel, sets: list[list[Tensor]]) -> Callable[[], tuple[float, float]]:
    """Return a function that times a forward pass, and forward and backward, in seconds.

    Args:
        run: The kernel.
        sets: Queries, keys, values and the outputs' gradients, several times on a GPU.
    """
    device = sets[0][0].device

    def leaves(tensors: list[Tensor]) -> list[Tensor]:
        # New ones in each call: a captured backward pass may not share its leaves with another.
        return [x.detach().requires_grad_() for x in tensors]

    def on_cpu() -> tuple[float, float]:
        *tensors, gradient = sets[0]
        given = leaves(tensors)
        start = now(str(device))
        outputs = run(*given)
        middle = now(str(device))
        torch.autograd.grad(outputs, given, gradient)
        return middle - start, now(str(device)) - start

    if device.type != "cuda":
        return on_cpu

    def forward() -> None:
        for *tensors, _ in sets:
            run(*leaves(tensors))

    def both() -> None:
        for *tensors, gradient in sets:
            given = leaves(tensors)
            torch.autograd.grad(run(*given), given, gradient)

    # Captured: launching takes the host longer than running takes the device.
    graphs = [capture(call, device) for call in (forward, both)]

    def on_gpu() -> tuple[float, float]:
        seconds = []
        for replay in graphs:
            start = now(str(device))
            for _ in range(REPLAYS):
                replay()
            seconds.append((now(str(device)) - start) / (REPLAYS * len(sets)))
        return seconds[0], seconds[1]

    return on_gpu


def least_work(size: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the operations and bytes of a forward and a backward pass of linear attention."""
    positions, width = math.prod(size[:-1]), size[-1]
    forward = 4 * positions * width * width
    # Forward q, k, v to outputs; backward those and the outputs' gradient to three gradients.
    return 4 * forward, (4 + 8) * positions * width * itemsize


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a table of our kernels against each peer, empty if no peer was measured."""
    table = []
    for peer, dtype, name in product(PEERS, dict.fromkeys(row["dtype"] for row in rows), OURS):
        chosen = [row for row in rows if (row["kernel"], row["dtype"]) == (name, dtype)]
        beside = [row for row in chosen if ratio_of(peer, WAYS[0]) in row]
        if beside:
            row = {"times_as_fast_as": peer, "dtype": dtype, "kernel": name, "cases": len(beside)}
            for way in WAYS:
                row |= spread(way, [case[ratio_of(peer, way)] for case in beside])
            table.append(row)
    caption = "Least, most and geometric mean of the ratios over all cases: shapes and threads."
    return {"caption": caption, "rows": table} if table else {}


def spread(way: str, ratios: list[float]) -> dict[str, float]:
    """Return the least, the most and the geometric mean of the ratios of one way."""
    found = {"least": min(ratios), "most": max(ratios), "mean": geometric_mean(ratios)}
    return {f"{way}_{name}": float(f"{ratio:.3g}") for name, ratio in found.items()}


if __name__ == "__main__":
    main()
