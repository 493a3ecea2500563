"""What is to be reached on an H200, and what was measured there: a table of RESULTS.md."""

from collections.abc import Callable
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks import record
from benchmarks.operators import LONGEST, PAPER, WAYS, ratio_of
from benchmarks.peers import FLA
from benchmarks.sampling import LINEAR_ON_GPU
from linear_transformers.runs.metrics import read_metrics

Row = dict[str, Any]
NOTHING = "not measured yet"
OURS = "triton"  # the kernel that is held to the goals


class Goal(NamedTuple):
    """A figure to reach.

    Attributes:
        what: What is measured.
        wanted: The figure, in words.
        measured: Returns the figure; None if it was not measured.
        reached: Whether a figure is good enough.
    """

    what: str
    wanted: str
    measured: Callable[[], float | None]
    reached: Callable[[float], bool]


def table() -> list[dict[str, str]]:
    """Return a row for each goal."""
    rows = []
    for goal in GOALS:
        found = goal.measured()
        met = "" if found is None else "yes" if goal.reached(found) else "no"
        shown = NOTHING if found is None else f"{found:.3g}"
        rows.append({"what": goal.what, "wanted": goal.wanted, "measured": shown, "reached": met})
    return rows


def _ratios(peer: str, least: int) -> list[float]:
    """Return how many times as fast as a peer our kernel is, both ways, from a length on."""
    return [
        row[ratio_of(peer, way)]
        for row in _operators()
        for way in WAYS
        if row["length"] >= least and ratio_of(peer, way) in row
    ]


def _operators() -> list[Row]:
    return [
        row
        for row in _rows("operators-cuda")
        if row["kernel"] == OURS and row["dtype"] == "bfloat16" and "error" not in row
    ]


def _at(shape: str) -> list[Row]:
    return [row for row in _operators() if f"{row['batch']}x{row['length']}" == shape]


def _rows(name: str) -> list[Row]:
    return (record.content_of(name) or {"rows": []})["rows"]


def _mean_ratio() -> float | None:
    ratios = _ratios(FLA, 512)
    return geometric_mean(ratios) if ratios else None


def _images_per_second(name: str) -> float | None:
    rows = _rows(f"sampling-{name}-cuda")
    return max((x["images_per_second"] for x in rows if x["method"] in LINEAR_ON_GPU), default=None)


def _epoch(name: str) -> float | None:
    """Return the seconds of the fastest epoch: the first one compiles."""
    rows = read_metrics(record.RESULTS / f"on-gpu-{name}-metrics.jsonl")
    key = "perf/seconds_per_epoch"
    return min((row[key] for row in rows if key in row), default=None)


def _share(shape: str) -> float | None:
    """Return the share of a copy's bandwidth, of the pass that has less of it.

    Of the least traffic a third is the forward pass's: see `operators.least_work`.
    """
    found = []
    for row in _at(shape):
        both = row["share_of_copy"] * sum(row[f"{way}_ms"] for way in WAYS)
        found += [both / 3 / row["forward_ms"], both * 2 / 3 / row["backward_ms"]]
    return min(found, default=None)


def _longest() -> float | None:
    times = (row["forward_ms"] + row["backward_ms"] for row in _at(LONGEST))
    return min(times, default=None)


GOALS = (
    Goal("times flash-linear-attention, mean", "1.2 or more", _mean_ratio, lambda x: x >= 1.2),
    Goal("times flash-linear-attention, least", "1 or more",
         lambda: min(_ratios(FLA, 512), default=None), lambda x: x >= 1),
    Goal("times FlashAttention from 1024 positions on, least", "1 or more",
         lambda: min(_ratios("sdpa", 1024), default=None), lambda x: x >= 1),
    *(Goal(f"{shape.replace('x', ' x ')}, share of a copy's bandwidth, either way", "1/3 or more",
           lambda shape=shape: _share(shape), lambda x: x >= 1 / 3)
      for shape in PAPER),
    Goal("2^20 positions forward and backward, ms", "any", _longest, lambda x: True),
    Goal("MNIST, images sampled a second", "5000 or more",
         lambda: _images_per_second("mnist"), lambda x: x >= 5000),
    Goal("CIFAR-10, images sampled a second", "600 or more",
         lambda: _images_per_second("cifar10"), lambda x: x >= 600),
    Goal("MNIST, seconds an epoch", "less than 15", lambda: _epoch("mnist"), lambda x: x < 15),
    Goal("CIFAR-10, seconds an epoch", "less than 90", lambda: _epoch("cifar10"), lambda x: x < 90),
)  # fmt: skip
