"""Figure 1 of Katharopoulos et al. (2020): time and peak memory of attention against length.

    uv run --group dev python -m benchmarks.scaling
    uv run --group dev python -m benchmarks.scaling --models linear softmax --max-exponent 13

Forward and backward of one attention layer on random input, N = 2^9 ... 2^16, the batch in
inverse proportion to N; linear attention goes on to 2^20, one sequence at a time. Each point
runs in a process of its own, so that running out of memory or time ends its own curve only. The
memory of a point is the peak of its process, less what it held before the first forward pass; what
a token keeps is counted by hooks of autograd.
Models that are not measured keep their earlier points, if these are of the same heads and machine.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import torch

from benchmarks import record
from benchmarks.apart import run_apart
from benchmarks.machine import now
from benchmarks.plots import plot
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of, usable_device
from linear_transformers.attention import CausalAttention
from linear_transformers.config.choices import checked_choice
from linear_transformers.config.folder import Configurations
from linear_transformers.jobs.composition import composed
from linear_transformers.pictures.tables import markdown

SEED = 0
OPTION = "model.mixer.attention"
PACKAGE = "linear_transformers.attention"
# The models of the figure, as overrides of the command line.
MODELS = {
    "linear": ["model=linear"],
    "softmax": ["model=softmax"],
    "lsh-4": ["model=lsh4", f"{OPTION}.num_buckets=64"],
    "lsh-8": ["model=lsh4", f"{OPTION}.num_buckets=64", f"{OPTION}.num_rounds=8"],
    "reformer-4": ["model=reformer4", f"{OPTION}.num_buckets=64"],
    "sparse": ["model=sparse"],  # its stride is set to the root of N
    "additive": ["model=additive"],
    # Their operators, with gates of keys: the figure is of attention, without projections.
    "retention": ["model=softmax", f"{OPTION}._target_={PACKAGE}.RetentionAttention"],
    "gated": ["model=softmax", f"{OPTION}._target_={PACKAGE}.GatedLinearAttention"],
    "delta": ["model=softmax", f"{OPTION}._target_={PACKAGE}.DeltaAttention"],
    "gated-delta": ["model=softmax", f"{OPTION}._target_={PACKAGE}.GatedDeltaAttention"],
}
SOFTMAX = "softmax"
FITTED_FROM = 2**12  # below that, constant costs still count


def main() -> None:
    options = parse()
    if options.point is not None:
        model, length = json.loads(options.point)
        print(json.dumps(measure(model, length, options)))
        return
    kind = torch.device(options.device).type
    title = f"Scaling: one layer of attention, {options.heads} heads of {options.head_dim}"
    measurement = Measurement(f"scaling-{kind}", title, device=options.device, seeds=[SEED])
    earlier = measurement.earlier() or {"rows": []}
    kept = [row for row in earlier["rows"] if row["model"] in MODELS]
    rows, points, found = [], [], None
    for model in options.models:
        kept = [row for row in kept if row["model"] != model]
        longest = options.max_exponent if model != "linear" else options.linear_max_exponent
        for exponent in range(options.min_exponent, longest + 1):
            rows.append(in_process_of_its_own(model, 2**exponent, options))
            print(json.dumps(rows[-1]), flush=True)
            points = sorted([*kept, *rows], key=lambda row: list(MODELS).index(row["model"]))
            # Beyond options.tokens the batch is 1: passes then take more memory and do not compare.
            comparable = [row for row in points if row["length"] <= options.tokens]
            found = summary(comparable, options.tokens)
            sources = record.as_sources(earlier) if kept else []
            # Saved after each point: a device may be taken away before the last.
            measurement.save(points, summary=found, sources=sources)
            if "failed" in rows[-1]:
                break  # longer ones would fail as well
    if found:
        print(markdown(found["rows"]))
    print(measurement.path)
    for what in ("milliseconds", "megabytes"):
        curves = {
            model: {row["length"]: row[what] for row in measured}
            for model, measured in by_model(points).items()
        }
        path = record.RESULTS / f"scaling-{kind}-{what}.png"
        y_label = f"{what} a sample, forward and backward"
        print(plot(curves, path, x_label="sequence length N", y_label=y_label, log_x=True))


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--min-exponent", type=int, default=9)
    parser.add_argument("--max-exponent", type=int, default=16)
    parser.add_argument("--linear-max-exponent", type=int, default=20)
    parser.add_argument("--tokens", type=count, default=2**16, help="batch x length, at most")
    parser.add_argument("--heads", type=count, default=8)
    parser.add_argument("--head-dim", type=count, default=32)
    parser.add_argument("--seconds", type=float, default=1.0, help="repetitions of a point [s]")
    parser.add_argument("--limit", type=float, default=180.0, help="timeout of a point [s]")
    parser.add_argument("--device", type=usable_device, default="auto")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_process_of_its_own(model: str, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one point, or of why it failed."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--point", json.dumps([model, length])]
    for name in ("tokens", "heads", "head_dim", "seconds", "device"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    point = {"model": model, "length": length}
    printed, failure = run_apart(command, seconds=options.limit)
    return point | ({"failed": failure} if failure else json.loads(printed.splitlines()[-1]))


def measure(model: str, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return time and peak memory per sequence, forward and backward, of one layer."""
    torch.manual_seed(SEED)
    attention = build(model, length, options).to(options.device)
    batch = max(1, options.tokens // length)
    shape = (batch, length, options.heads, options.head_dim)
    q, k, v = (torch.randn(shape, device=options.device, requires_grad=True) for _ in range(3))
    gradient = torch.randn(shape, device=options.device)
    if options.device == "cpu":
        _reset_peak_memory()
    before = memory(options.device)
    times: list[float] = []
    while len(times) < 2 or (sum(times) < options.seconds and len(times) < 50):
        start = now(options.device)
        attention(q, k, v).backward(gradient)
        times.append(now(options.device) - start)
        q.grad = k.grad = v.grad = None  # kept, they would be memory beside the next pass's
        if times[0] > options.seconds:
            break
    milliseconds = 1000 * median(times[1:] or times)  # the first fills caches
    megabytes = (memory(options.device) - before) / 1e6
    kept = kept_bytes(attention, length, options) / length  # last: it has a peak of its own
    return {
        "batch": batch,
        "milliseconds": round(milliseconds / batch, 4),
        "megabytes": round(megabytes / batch, 3),
        "kept_bytes_a_token": round(kept),
    }


def kept_bytes(attention: torch.nn.Module, length: int, options: argparse.Namespace) -> int:
    """Return the bytes that the forward pass of one sequence keeps for the backward pass."""
    shape = (1, length, options.heads, options.head_dim)
    q, k, v = (torch.randn(shape, device=options.device, requires_grad=True) for _ in range(3))
    kept: dict[int, int] = {}

    def see(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(see, lambda x: x):
        outputs = attention(q, k, v)  # alive until all are counted: no two have one address
    assert outputs.shape == shape
    return sum(kept.values())


def build(model: str, length: int, options: argparse.Namespace) -> torch.nn.Module:
    overrides = list(MODELS[model])
    if model == "sparse":
        overrides.append(f"{OPTION}.stride={max(8, round(math.sqrt(length)))}")
    config = composed(Configurations.of("train"), *overrides)
    choice = checked_choice(config["model"]["mixer"]["attention"], OPTION, CausalAttention)
    return choice(options.heads, options.head_dim)


def memory(device: str) -> int:
    """Return the peak memory in bytes: of tensors on a GPU, of the process on a CPU (Linux)."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status").read_text()
    return 1024 * next(
        int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")
    )


def _reset_peak_memory() -> None:
    """Reset the peak memory, which loading set, and let the system kill this process first."""
    Path("/proc/self/clear_refs").write_text("5")
    Path("/proc/self/oom_score_adj").write_text("1000")


def fitted(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each model's exponents of N in time and memory, by least squares on logarithms."""
    slopes: dict[str, dict[str, float]] = {}
    for model, points in by_model(rows).items():
        points = [row for row in points if row["length"] >= FITTED_FROM]
        if len(points) < 2:
            continue
        slopes[model] = {}
        x = [math.log(row["length"]) for row in points]
        for what in ("milliseconds", "megabytes"):
            y = [math.log(max(row[what], 1e-3)) for row in points]
            slopes[model][what] = linear_regression(x, y).slope
    return slopes


def by_model(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the points that did not fail, by model, in the order of their lengths."""
    done = [row for row in rows if "failed" not in row]
    models = dict.fromkeys(row["model"] for row in done)
    return {model: [row for row in done if row["model"] == model] for model in models}


def faster_from(points: list[dict[str, Any]], others: list[dict[str, Any]]) -> int | None:
    """Return the length from which on a model is faster than another, or None."""
    theirs, found = {row["length"]: row["milliseconds"] for row in others}, None
    for row in reversed([row for row in points if row["length"] in theirs]):
        if row["milliseconds"] >= theirs[row["length"]]:
            break
        found = row["length"]
    return found


def summary(rows: list[dict[str, Any]], longest: int) -> dict[str, Any]:
    """Return a table of the exponents, empty if too few lengths were measured."""
    points, table = by_model(rows), []
    for model, slopes in fitted(rows).items():
        row = {f"{what}_exponent": round(slope, 2) for what, slope in slopes.items()}
        row |= {"kept_bytes_a_token": points[model][-1]["kept_bytes_a_token"]}
        if model != SOFTMAX and SOFTMAX in points:
            found = faster_from(points[model], points[SOFTMAX])
            row |= {"faster_than_softmax_from": found or "nowhere"}
        table.append({"model": model, **row})
    caption = (
        f"Exponents of N, of one sample, fitted from N = {FITTED_FROM} to {longest}; what the "
        "forward pass keeps for the backward pass, inputs included; from which N on it is faster."
    )
    return {"caption": caption, "rows": table} if table else {}


if __name__ == "__main__":
    main()
