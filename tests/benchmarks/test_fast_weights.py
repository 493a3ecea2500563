"""The benchmark of fast weights compares implementations of one function."""

import argparse
import json
import sys

import pytest
import torch

from benchmarks import fast_weights, record
from benchmarks.operators import Case

pytest.importorskip("fla", reason="fla-core is optional")
pytestmark = pytest.mark.filterwarnings("ignore")  # of a machine without a GPU


@pytest.mark.parametrize("operator", fast_weights.REFERENCES)
def test_implementations_agree(operator):
    """The reference's queries are scaled; ours are by the layer."""
    options = argparse.Namespace(heads=2, head_dim=8)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 128, 2, 8)
    found = fast_weights.kernels_of(operator, Case("2x128", "float32", 1), options)
    expected = found["ours"](q, k, v)
    torch.testing.assert_close(found["whole"](q, k, v), expected, rtol=1e-4, atol=1e-4)
    theirs = found["fla"](q, k, v) * 8**0.5
    torch.testing.assert_close(theirs, expected, rtol=1e-4, atol=1e-4)


def test_rows_have_how_many_times_as_fast_ours_is(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    arguments = ["--shape", "2x64", "--heads", "2", "--head-dim", "8", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["fast_weights", *arguments, "--threads", "1"])
    fast_weights.main()
    rows = json.loads((tmp_path / "fast-weights-cpu.json").read_text())["rows"]
    names = [(row["operator"], row["implementation"]) for row in rows]
    operators, implementations = fast_weights.REFERENCES, ("ours", "chunks", "whole", "fla")
    assert names == [(operator, name) for operator in operators for name in implementations]
    for i, row in enumerate(rows):
        ours = rows[i - i % len(implementations)]
        times = [each["forward_ms"] + each["backward_ms"] for each in (row, ours)]
        assert row["ours_times"] == pytest.approx(times[0] / times[1], rel=0.01)
