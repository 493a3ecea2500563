"""The table of feature maps joins what was trained with what it costs."""

import json
import sys

import pytest

from benchmarks import maps, record


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["maps"])

    def write(name: str, rows: list[dict]):
        about = {"seeds": [0, 1], "command": "c", "rows": rows, "title": name}
        (tmp_path / f"{name}.json").write_text(json.dumps(about))

    return write


def test_maps_are_compared_with_elu(write, tmp_path):
    trained = [("elu", 1.9), ("relu", 1.95)]
    write(
        "ablation-maps-digits",
        [
            {"variant": name, "val_bits": 9, "test_bits": x, "deviation": 0.01}
            for name, x in trained
        ],
    )
    costs = [("elu", 10, 100), ("relu", 15, 50)]
    write(
        "costs-maps-digits",
        [{"variant": name, "ms_per_training_step": ms, "state_bytes": n} for name, ms, n in costs],
    )
    write("ablation-maps-espeak", [{"variant": "elu", "test_rate": 7.0}])
    maps.main()
    found = json.loads((tmp_path / "feature-maps.json").read_text())
    rows = {row.pop("feature_map"): row for row in found["rows"]}
    assert rows["relu"] == {
        "digits bits": "1.950 ± 0.010", "digits training step": 1.5, "digits state bytes": 50,
    }  # fmt: skip
    assert rows["elu"]["digits training step"] == 1
    assert rows["elu"]["espeak rate"] == "7.000"
    assert rows["taylor"] == {}
    assert [source["command"] for source in found["sources"]] == ["c"] * 3
    assert (tmp_path / "feature-maps.png").stat().st_size > 10_000


def test_nothing_measured_says_what_to_call(write):
    with pytest.raises(SystemExit, match=r"benchmarks\.ablation maps-digits"):
        maps.main()


def test_costs_without_elu_are_measured_again(write):
    write("costs-maps-digits", [{"variant": "relu", "ms_per_training_step": 15, "state_bytes": 50}])
    with pytest.raises(SystemExit, match=r"costs-maps-digits has no elu.*costs maps-digits"):
        maps.main()
