"""The benchmarks run and their figures arrive in RESULTS.md; how fast is not tested."""

import json
import sys

import pytest

from benchmarks import collect, machine, operators, precision, report, sampling, scaling
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
        "--threads", "1", "2",
        "--methods", "compiled int8", "recurrent", "softmax, cached", "softmax, recomputed",
    )  # fmt: skip
    rows = json.loads((results / "sampling-cpu.json").read_text())["rows"]
    methods = ("compiled int8", "recurrent", "softmax, cached", "softmax, recomputed")
    assert [tuple(row.values())[:4] for row in rows] == [
        (length, batch, threads, method)
        for length in (20, 9)
        for batch in (1, 3)
        for threads in (1, 2)
        for method in methods[: 2 + threads]  # recomputed only with the most threads
    ]
    for row in rows:
        expected = 1000 * row["batch"] / (row["length"] * row["ms_per_step"])
        assert row["images_per_second"] == pytest.approx(expected, rel=0.01)
    assert "As fast as softmax, cached" in capsys.readouterr().out


def test_kernels_are_measured_side_by_side(results, monkeypatch, capsys):
    call(
        operators, monkeypatch, "--shapes", "2x20", "1x9", "--threads", "1", "--rounds=1",
        "--heads=2", "--head-dim=8", "--kernels", "parallel", "chunkwise", "sdpa", "--device=cpu",
    )  # fmt: skip
    rows = json.loads((results / "operators-cpu.json").read_text())["rows"]
    assert [(row["batch"], row["length"], row["kernel"]) for row in rows] == [
        (*size, name) for size in ((2, 20), (1, 9)) for name in ("parallel", "chunkwise", "sdpa")
    ]
    assert all(row["forward_ms"] > 0 < row["backward_ms"] for row in rows)
    assert all(("share_of_peak" in row) == (row["kernel"] == "chunkwise") for row in rows)
    assert "chunkwise" in capsys.readouterr().out


def test_the_ratios_to_the_peer_are_put_in_words():
    rows = [
        {
            "kernel": "chunkwise",
            "dtype": "float32",
            "times_fast_transformers_forward": forward,
            "times_fast_transformers_backward": 3.0,
        }
        for forward in (1.0, 4.0)
    ]
    found = operators.finding(rows)
    assert "As fast as fast-transformers: chunkwise forward 1.0 to 4.0 x, mean 2.0 x" in found


def test_the_ratios_to_rivals_are_those_of_the_best_number_of_threads():
    rows = [
        {"length": 8, "batch": 2, "threads": threads, "method": method, "ms_per_step": ms}
        for threads, method, ms in [
            (1, "compiled", 2.0), (2, "compiled", 3.0),
            (1, "recurrent", 9.0), (2, "recurrent", 5.0),
            (1, "fast-transformers", 12.0), (2, "fast-transformers", 10.0),
        ]
    ]  # fmt: skip
    found = sampling.finding(rows)
    assert found.endswith(
        "As fast as fast-transformers, batch 2: compiled 5.00 x, recurrent 2.00 x at 8."
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


def test_the_cost_of_rounded_weights_is_measured(results, tmp_path, monkeypatch, capsys):
    run("train", *QUICK, f"paths.runs={tmp_path}/runs", "run_id=tiny", "test=false")
    call(precision, monkeypatch, "tiny", "tiny", f"--runs={tmp_path}/runs", "--images=6")
    rows = json.loads((results / "precision.json").read_text())["rows"]
    assert rows[:3] == rows[3:]
    assert [(row["weights"], row["images"]) for row in rows[:3]] == [
        ("float32", 6), ("bfloat16", 6), ("int8", 6)
    ]  # fmt: skip
    assert rows[0]["cost"] == 0
    assert all(0 < abs(row["cost"]) < 0.1 for row in rows[1:3])


def test_a_multirun_is_collected_as_its_table(results, tmp_path, monkeypatch, capsys):
    run("train", "-m", *QUICK, f"paths.runs={tmp_path}/runs", "seed=1,2")
    (folder,) = (tmp_path / "runs/sweeps").iterdir()
    words = ("--title=Two seeds", "--finding=Both alike.")
    call(collect, monkeypatch, "two", str(folder), *words)
    measurement = json.loads((results / "two.json").read_text())
    assert (measurement["title"], measurement["finding"]) == ("Two seeds", "Both alike.")
    assert [row["seed"] for row in measurement["rows"]] == ["1", "2"]
    assert {"test_bits_per_dim", "tokens_per_second", "state_bytes_at_3072"} <= set(
        measurement["rows"][0]
    )


def test_every_point_of_the_scaling_figure_has_a_process_of_its_own(results, monkeypatch, capsys):
    """One that cannot be computed ends its own curve and nothing else."""
    models = {"linear": ["model=linear"], "none": ["model=nothing"], "softmax": ["model=softmax"]}
    monkeypatch.setattr(scaling, "MODELS", models)
    monkeypatch.setattr(scaling, "RESULTS", results)
    call(
        scaling, monkeypatch, "--models", "linear", "none", "softmax", "--min-exponent=12",
        "--max-exponent=13", "--linear-max-exponent=14", "--tokens=8192", "--heads=4",
        "--head-dim=16", "--seconds=0.01", "--device=cpu",
    )  # fmt: skip
    rows = json.loads((results / "scaling-cpu.json").read_text())["rows"]
    done = [(row["model"], row["length"]) for row in rows if "failed" not in row]
    assert done == [("linear", 2**n) for n in (12, 13, 14)] + [("softmax", 2**n) for n in (12, 13)]
    assert all(row["milliseconds"] > 0 for row in rows if "failed" not in row)
    assert all(row["megabytes"] > 0 for row in rows if "failed" not in row)
    (failed,) = [row for row in rows if "failed" in row]
    assert failed["model"] == "none"
    for what in ("milliseconds", "megabytes"):
        assert (results / f"scaling-cpu-{what}.png").stat().st_size > 5000
    call(
        scaling, monkeypatch, "--models", "linear", "--min-exponent=12", "--tokens=8192",
        "--linear-max-exponent=12", "--heads=4", "--head-dim=16", "--seconds=0.01", "--device=cpu",
    )  # fmt: skip
    again = json.loads((results / "scaling-cpu.json").read_text())["rows"]
    assert [row for row in again if row["model"] != "linear"] == [
        row for row in rows if row["model"] != "linear"
    ]
    assert [row["length"] for row in again if row["model"] == "linear"] == [2**12]


def test_the_exponent_of_a_power_is_found():
    rows = [
        {"model": "a", "length": n, "milliseconds": 3e-6 * n**2, "megabytes": 1e-3 * n}
        for n in (2**12, 2**13, 2**15)
    ]
    assert scaling.fitted(rows)["a"] == pytest.approx({"milliseconds": 2, "megabytes": 1})
