"""What is to be reached on an H200, and what was measured there: a table of RESULTS.md."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks.operators import LONGEST, PAPER, WAYS, ratio_of
from benchmarks.peers import FLA
from benchmarks.sampling import CAPTURED, FUSED, RECURRENT

Row = dict[str, Any]
NOTHING = "not measured yet"
OURS = "triton"  # the kernel that is held to the goals
METHODS = (*CAPTURED, *FUSED, RECURRENT)  # of sampling, likewise


class Goal(NamedTuple):
    """A figure to reach.

    Attributes:
        what: What is measured.
        wanted: The figure, in words.
        measured: Given the folder of results, the figure; None if it was not measured.
        reached: Whether a figure is good enough.
    """

    what: str
    wanted: str
    measured: Callable[[Path], float | None]
    reached: Callable[[float], bool]


def table(results: Path) -> list[dict[str, str]]:
    """Return a row for each goal."""
    rows = []
    for goal in GOALS:
        found = goal.measured(results)
        met = "" if found is None else "yes" if goal.reached(found) else "no"
        shown = NOTHING if found is None else f"{found:.3g}"
        rows.append({"what": goal.what, "wanted": goal.wanted, "measured": shown, "reached": met})
    return rows


def _ratios(results: Path, peer: str, least: int) -> list[float]:
    """Return how many times as fast as a peer our kernel is, both ways, from a length on."""
    return [
        row[ratio_of(peer, way)]
        for row in _operators(results)
        for way in WAYS
        if row["length"] >= least and ratio_of(peer, way) in row
    ]


def _operators(results: Path) -> list[Row]:
    return [
        row
        for row in _rows(results / "operators-cuda.json")
        if row["kernel"] == OURS and row["dtype"] == "bfloat16" and "error" not in row
    ]


def _shapes(results: Path, shapes: Iterable[str]) -> list[Row]:
    wanted = set(shapes)
    return [row for row in _operators(results) if f"{row['batch']}x{row['length']}" in wanted]


def _rows(path: Path) -> list[Row]:
    return json.loads(path.read_text())["rows"] if path.is_file() else []


def _of(summed: Callable[[list[float]], float], figures: list[float]) -> float | None:
    return summed(figures) if figures else None


def _images_per_second(results: Path, name: str) -> float | None:
    rows = _rows(results / f"sampling-{name}-cuda.json")
    return _of(max, [row["images_per_second"] for row in rows if row["method"] in METHODS])


def _epoch(results: Path, name: str) -> float | None:
    """Return the seconds of the fastest epoch: the first one compiles."""
    path = results / f"on-gpu-{name}-metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    found = [row["perf/seconds_per_epoch"] for row in map(json.loads, lines)
             if "perf/seconds_per_epoch" in row]  # fmt: skip
    return _of(min, found)


def _share(results: Path, shape: str) -> float | None:
    """Return the share of a copy's bandwidth, of the pass that has less of it.

    Of the least traffic a third is the forward pass's: see `operators.least_work`.
    """
    found = []
    for row in _shapes(results, [shape]):
        both = row["share_of_copy"] * sum(row[f"{way}_ms"] for way in WAYS)
        found += [both / 3 / row["forward_ms"], both * 2 / 3 / row["backward_ms"]]
    return _of(min, found)


def _longest(results: Path) -> float | None:
    rows = _shapes(results, [LONGEST])
    return _of(min, [row["forward_ms"] + row["backward_ms"] for row in rows])


GOALS = (
    Goal("times flash-linear-attention, mean", "1.2 or more",
         lambda results: _of(geometric_mean, _ratios(results, FLA, 512)), lambda x: x >= 1.2),
    Goal("times flash-linear-attention, least", "1 or more",
         lambda results: _of(min, _ratios(results, FLA, 512)), lambda x: x >= 1),
    Goal("times FlashAttention from 1024 positions on, least", "1 or more",
         lambda results: _of(min, _ratios(results, "sdpa", 1024)), lambda x: x >= 1),
    *(Goal(f"{shape.replace('x', ' x ')}, share of a copy's bandwidth, either way", "1/3 or more",
           lambda results, shape=shape: _share(results, shape), lambda x: x >= 1 / 3)
      for shape in PAPER),
    Goal("2^20 positions forward and backward, ms", "any", _longest, lambda x: True),
    Goal("MNIST, images sampled a second", "5000 or more",
         lambda results: _images_per_second(results, "mnist"), lambda x: x >= 5000),
    Goal("CIFAR-10, images sampled a second", "600 or more",
         lambda results: _images_per_second(results, "cifar10"), lambda x: x >= 600),
    Goal("MNIST, seconds an epoch", "less than 15",
         lambda results: _epoch(results, "mnist"), lambda x: x < 15),
    Goal("CIFAR-10, seconds an epoch", "less than 90",
         lambda results: _epoch(results, "cifar10"), lambda x: x < 90),
)  # fmt: skip
