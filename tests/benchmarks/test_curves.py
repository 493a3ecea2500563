"""Learning curves are means over the runs of a table."""

import json
import sys

import pytest

from benchmarks import curves, plots, record
from benchmarks.plans import PLANS


def run(variant: str, values: list[float], seconds: float = 120.0, arguments: str = "a") -> dict:
    curve = {"val/x": {"step": [10, 20, 30][: len(values)], "value": values}}
    return {"variant": variant, "arguments": arguments, "seconds": seconds, "curves": curve}


def test_curves_are_means_by_step_and_minute_of_the_quickest():
    runs = [run("linear", [3.0, 2.0, 1.0], 120), run("linear", [5.0, 4.0], 180)]
    assert curves.mean(runs, "steps") == {10: 4.0, 20: 3.0}
    assert curves.mean(runs, "minutes") == pytest.approx({2 / 3: 4.0, 4 / 3: 3.0})
    assert curves.mean([], "steps") == {}


def test_outliers_leave_the_others_room():
    assert plots.without_outliers([1.0, 1.1, 1.2, 1.3, 9.0]) == 1.3
    assert plots.without_outliers([1.0, 1.1, 1.2, 1.3, 1.9]) == 1.9
    assert plots.without_outliers([2.0]) == 2.0


def test_what_ends_where_others_begin_is_in_the_picture(tmp_path, monkeypatch):
    """As LSH attention on copying: far behind, and still on its way."""
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["curves", "digits"])
    ends = {"linear": 0.01, "softmax": 0.0, "linear_conv": 0.02, "sparse": 0.5, "lsh1": 2.0}
    runs = [run(name, [1.0, end]) for name, end in ends.items()]
    monkeypatch.setattr(curves, "PLANS", {"digits": PLANS["digits"]._replace(variants=ends)})
    rows = [{"variant": name, "arguments": "a"} for name in ends]
    (tmp_path / "ablation-digits.json").write_text(json.dumps({"rows": rows, "sources": runs}))
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda axes, found, **options: drawn.append(found))
    curves.main()
    assert set(drawn[0]) == {"linear", "softmax", "linear_conv", "sparse"}


def test_runs_that_were_called_otherwise_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["curves", "digits"])
    runs = [run("linear", [3.0, 2.0]), run("linear", [9.0, 9.0], arguments="b")]
    runs.append({**run("softmax", []), "curves": {}})
    rows = [{"variant": name, "arguments": "a"} for name in ("linear", "softmax")]
    (tmp_path / "ablation-digits.json").write_text(json.dumps({"rows": rows, "sources": runs}))
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda axes, found, **options: drawn.append(found))
    curves.main()
    by_step, by_minute = drawn
    assert by_step == {"linear": {10: 3.0, 20: 2.0}}
    assert by_minute == {"linear": {1.0: 3.0, 2.0: 2.0}}
    assert (tmp_path / "ablation-digits-curves.png").is_file()


def test_what_was_not_trained_says_what_to_call(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["curves", "digits"])
    with pytest.raises(SystemExit, match=r"python -m benchmarks\.ablation digits"):
        curves.main()
