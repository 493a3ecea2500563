"""Learning curves are means over the runs of a table."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks import curves, plots, record
from benchmarks.plans import PLANS


@pytest.fixture(autouse=True)
def _called(tmp_path, monkeypatch) -> None:
    """As `python -m benchmarks.curves digits`, with the test's folder of results."""
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["curves", "digits"])


def run(variant: str, values: list[float], arguments: str = "a") -> dict:
    curve = {"val/x": {"step": [10, 20, 30][: len(values)], "value": values}}
    return {"variant": variant, "arguments": arguments, "curves": curve}


def measured(folder: Path, runs: list[dict], names: Iterable[str]) -> None:
    rows = [{"variant": name, "arguments": "a"} for name in names]
    (folder / "ablation-digits.json").write_text(json.dumps({"rows": rows, "sources": runs}))
    costs = [{"variant": name, "ms_per_training_step": 3000} for name in names]
    (folder / "costs-digits.json").write_text(json.dumps({"rows": costs, "threads": 2}))


def test_curves_are_means_where_all_runs_have_a_value():
    runs = [run("linear", [3.0, 2.0, 1.0]), run("linear", [5.0, 4.0])]
    assert curves.mean(runs, 1) == {10: 4.0, 20: 3.0}
    assert curves.mean(runs, 0.5) == {5: 4.0, 10: 3.0}
    assert curves.mean([], 1) == {}


def test_outliers_leave_the_others_room():
    assert plots.without_outliers([1.0, 1.1, 1.2, 1.3, 9.0]) == 1.3
    assert plots.without_outliers([1.0, 1.1, 1.2, 1.3, 1.9]) == 1.9
    assert plots.without_outliers([2.0]) == 2.0


def test_what_ends_where_others_begin_is_in_the_picture(tmp_path, monkeypatch):
    """As LSH attention on copying: far behind, and still on its way."""
    ends = {"linear": 0.01, "softmax": 0.0, "linear_conv": 0.02, "sparse": 0.5, "lsh1": 2.0}
    runs = [run(name, [1.0, end]) for name, end in ends.items()]
    monkeypatch.setattr(curves, "PLANS", {"digits": PLANS["digits"]._replace(variants=ends)})
    measured(tmp_path, runs, ends)
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda axes, found, **options: drawn.append(found))
    curves.main()
    assert set(drawn[0]) == {"linear", "softmax", "linear_conv", "sparse"}


def test_runs_that_were_called_otherwise_are_left_out(tmp_path, monkeypatch):
    runs = [run("linear", [3.0, 2.0]), run("linear", [9.0, 9.0], arguments="b")]
    runs.append({**run("softmax", []), "curves": {}})
    measured(tmp_path, runs, ("linear", "softmax"))
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda axes, found, **options: drawn.append(found))
    curves.main()
    by_step, by_minute = drawn
    assert by_step == {"linear": {10: 3.0, 20: 2.0}}
    assert by_minute == {"linear": {0.5: 3.0, 1.0: 2.0}}
    assert (tmp_path / "ablation-digits-curves.png").is_file()


def test_a_name_says_of_how_many_runs_its_curve_is(tmp_path, monkeypatch):
    runs = [run("linear", [3.0, 2.0]), {**run("linear", []), "curves": {}}]
    measured(tmp_path, runs, ("linear",))
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda axes, found, **options: drawn.append(found))
    curves.main()
    assert [*drawn[0]] == ["linear, 1 of 2"]


def test_what_was_not_trained_says_what_to_call(tmp_path):
    with pytest.raises(SystemExit, match=r"python -m benchmarks\.ablation digits"):
        curves.main()
    (tmp_path / "ablation-digits.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"python -m benchmarks\.costs digits"):
        curves.main()


def test_a_variant_without_costs_says_what_to_call(tmp_path):
    measured(
        tmp_path, [run("linear", [3.0, 2.0]), run("softmax", [3.0, 2.0])], ("linear", "softmax")
    )
    costs = {"rows": [{"variant": "linear", "ms_per_training_step": 3000}], "threads": 2}
    (tmp_path / "costs-digits.json").write_text(json.dumps(costs))
    with pytest.raises(
        SystemExit, match=r"no costs of softmax: python -m benchmarks\.costs digits"
    ):
        curves.main()
