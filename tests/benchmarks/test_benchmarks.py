"""The benchmarks run and their figures arrive in RESULTS.md; how fast is not tested."""

import json
import sys

import pytest

from benchmarks import collect, machine, report, sampling
from tests.programs import QUICK, run


@pytest.fixture
def results(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    monkeypatch.setattr(machine, "RESULTS", folder)
    monkeypatch.setattr(report, "RESULTS", folder)
    return folder


def call(program, monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [program.__file__, *arguments])
    program.main()


def test_sampling_is_measured_side_by_side(results, monkeypatch, capsys):
    call(
        sampling, monkeypatch, "--length", "20", "9",
        "--layers=1", "--heads=2", "--model-dim=16",
        "--batch", "1", "3", "--positions=2", "--steps=2", "--rounds=1", "--device=cpu",
    )  # fmt: skip
    rows = json.loads((results / "sampling-cpu.json").read_text())["rows"]
    assert [(row["length"], row["batch"], row["method"]) for row in rows] == [
        (length, batch, method)
        for length in (20, 9)
        for batch in (1, 3)
        for method in ("linear", "softmax, cached", "softmax, no cache")
    ]
    for row in rows:
        expected = 1000 * row["batch"] / (row["length"] * row["ms_per_step"])
        assert row["images_per_second"] == pytest.approx(expected, rel=0.01)
    assert "against softmax, cached" in capsys.readouterr().out


def test_the_growth_with_length_is_put_in_words():
    rows = [
        {"length": length, "batch": 2, "method": method, "times_cached_softmax": ratio}
        for length, method, ratio in [
            (8, "linear", 1.5), (8, "softmax, cached", 1.0), (64, "linear", 6.0)
        ]
    ]  # fmt: skip
    assert sampling.finding(rows).endswith(
        "batch 2: 1.50 x at 8, 6.00 x at 64 (4.0 times as much)."
    )


def test_finished_runs_are_collected_and_reported(results, tmp_path, monkeypatch):
    run("train", *QUICK, f"paths.runs={tmp_path}/runs", "run_id=tiny")
    call(collect, monkeypatch, "digits", f"{tmp_path}/runs/tiny")
    (row,) = json.loads((results / "digits.json").read_text())["rows"]
    assert (row["attention"], row["layers"], row["histogram"]) == ("LinearAttention", 2, 2.408)
    call(report, monkeypatch)
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| attention | layers |" in page
    assert f"| {' | '.join(str(value) for value in row.values())} |" in page
