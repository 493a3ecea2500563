"""Time and memory of sequences that are cut over processes, by length: see `ops/pieces.py`.

    uv run --group dev python -m benchmarks.sequence_parallel
    uv run --group dev python -m benchmarks.sequence_parallel --models linear --max-exponent 17

Forward and backward of one block of 4 heads, 64 wide, on one sequence of N = 2^16 ... 2^20 random
vectors: by one process with one thread, by one with two, and by two processes with one thread
each, as `trainer=sequence_parallel` has them, of which each has half of the sequence. The
memory of a process is its peak, less what it held before the first pass; bytes are what a process
gives to others in a pass. What fails, as where memory runs out, is a row that says why.
"""

import argparse
import json
import sys
import time
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import distributed

from benchmarks.apart import run_apart
from benchmarks.record import Measurement
from benchmarks.scaling import memory
from benchmarks.usage import parser_of
from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import GatedDeltaNet, MixerFactory, MultiHeadAttention
from linear_transformers.models.block import Block
from linear_transformers.ops.pieces import Place
from linear_transformers.training.memory import keep_freed_memory

SEED, WIDTH, HEADS = 0, 64, 4
ATTENTION = partial(LinearAttention, feature_map=Elu)
MODELS: dict[str, MixerFactory] = {
    "linear": partial(MultiHeadAttention, attention=ATTENTION),
    "linear_conv": partial(
        MultiHeadAttention, attention=ATTENTION, short_convolution=4, output_norm=True,
        output_gate="silu",
    ),
    "gated_delta": GatedDeltaNet,
}  # fmt: skip
LONGEST = {"gated_delta": 19}  # it keeps 20 kB of a position
WAYS = ((1, 1), (1, 2), (2, 1))  # processes, and threads of each


def main() -> None:
    options = parse()
    if options.point is not None:
        distributed.init_process_group("gloo")
        found: list[Any] = [None] * distributed.get_world_size()
        model, length = json.loads(options.point)
        distributed.all_gather_object(found, measure(model, length, options))
        if distributed.get_rank() == 0:
            print(json.dumps(found), flush=True)
        distributed.barrier()  # a process that ends first would fail the others
        distributed.destroy_process_group()
        return
    title = f"Sequences cut over processes: one block of {HEADS} heads, {WIDTH} wide"
    measurement = Measurement("sequence-parallel-cpu", title, device="cpu", seeds=[SEED])
    rows: list[dict[str, Any]] = []
    for model in options.models:
        longest = LONGEST.get(model, options.max_exponent)
        for exponent in range(options.min_exponent, min(longest, options.max_exponent) + 1):
            rows += at_length(model, 2**exponent, options)
            measurement.save(rows)


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=MODELS)
    parser.add_argument("--min-exponent", type=int, default=16)
    parser.add_argument("--max-exponent", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=6.0, help="the time of a point, at least")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    return parser.parse_args()


def at_length(model: str, length: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each way to compute a sequence."""
    rows: list[dict[str, Any]] = []
    for processes, threads in WAYS:
        row: dict[str, Any] = {
            "model": model, "length": length, "processes": processes, "threads": threads,
        }  # fmt: skip
        found, failed = of_processes(model, length, processes, threads, options)
        if failed is None:
            seconds = max(part["seconds"] for part in found)
            row["seconds_per_step"] = round(seconds, 3)
            if first := rows[0].get("seconds_per_step") if rows else seconds:
                row["times_one_thread"] = round(first / seconds, 2)
            row |= {
                "megabytes": max(part["megabytes"] for part in found),
                "kilobytes_sent": max(part["kilobytes_sent"] for part in found),
            }
        else:
            row["failed"] = failed
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def of_processes(
    model: str, length: int, processes: int, threads: int, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], str | None]:
    """Return what each of some processes measured, and why they failed, if they did."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    point = ["--point", json.dumps([model, length]), "--seconds", str(options.seconds)]
    printed, failed = run_apart(
        [sys.executable, *launcher, "-m", "benchmarks.sequence_parallel", *point],
        seconds=60 + 20 * options.seconds,
        environment={"OMP_NUM_THREADS": str(threads)},
    )
    return [] if failed else json.loads(printed.splitlines()[-1]), failed


def measure(model: str, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the time and the memory of this process's piece, forward and backward."""
    keep_freed_memory()
    place = Place(distributed.get_rank(), distributed.get_world_size())
    piece = place.piece(length) if place.devices > 1 else None
    sent = counted()
    torch.manual_seed(SEED)
    block = Block(
        MODELS[model], model_dim=WIDTH, num_heads=HEADS, feedforward_dim=4 * WIDTH, dropout=0.0,
        norm="pre", norm_type="layer", activation="relu",
    )  # fmt: skip
    x, gradient = (torch.randn(1, place.piece(length).lengths[place.rank], WIDTH) for _ in range(2))
    before, times = memory("cpu"), []
    elapsed = torch.zeros(1)
    while len(times) < 2 or elapsed < options.seconds:
        distributed.barrier()
        start = time.perf_counter()
        block(x, piece=piece).backward(gradient)
        times.append(time.perf_counter() - start)
        block.zero_grad()
        elapsed += times[-1]
        distributed.broadcast(elapsed, 0)  # all processes take as many steps
    return {
        "seconds": median(times[1:]),  # the first fills caches
        "megabytes": round((memory("cpu") - before) / 1e6, 1),
        "kilobytes_sent": round(sum(sent) / len(times) / 1e3, 3),
    }


def counted() -> list[int]:
    """Return a list that receives the bytes of each tensor that is given to other processes."""
    sent: list[int] = []
    for name in ("all_gather", "all_reduce"):
        function = getattr(distributed, name)

        def counting(*tensors: Any, function: Any = function) -> None:
            sent.append(tensors[-1].nbytes)
            function(*tensors)

        setattr(distributed, name, counting)
    return sent


if __name__ == "__main__":
    main()
