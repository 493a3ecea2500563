"""Figures of the pages are those that were measured."""

import json
from pathlib import Path

import pytest

from benchmarks import figures, record


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.name)
def test_every_figure_of_the_pages_was_measured(page):
    assert list(figures.faults(page)) == []


@pytest.fixture
def faults(tmp_path, monkeypatch):
    """Return the faults of a page beside one measurement."""
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    rows = [{"ms": 12.345, "bytes": 17408, "runs": 5, "against": "-0.121 ± 0.004"}]
    rows.append({"arguments": "model.dropout=0.5"})
    rows.append({"model": "linear", "s": 4.75})
    measured = {"rows": rows, "sources": [{"seconds": 77, "curves": {"x": [3.5]}}]}
    (tmp_path / "speed.json").write_text(json.dumps(measured))
    (tmp_path / "space.json").write_text(json.dumps({"rows": [{"kB": 3.25}]}))

    def faults(text: str) -> list[str]:
        page = tmp_path / "page.md"
        page.write_text(text)
        return figures.faults(page)

    return faults


@pytest.mark.parametrize(
    "text",
    [
        "Nothing was measured here: 8 heads of 32, `lr=0.1`, [a paper](x/0.5), arXiv 2006.16236.",
        "    code 0.5 ms\n\n```python\nx = 0.5\n```",
        "<!-- from speed -->\nA step takes 12.3 ms, 12 ms, 12.345 ms: 5 runs, 0.121 ± 0.004.",
        "<!-- from speed; in 1e-3 -->\n| a | b |\n| - | - |\n| 17.4 kB | 17,408 |",
        "<!-- from speed; 17,400 = 17408 -->\n| 17,400 |",
        "<!-- from speed; given 4 64 -->\nAt 64 values on 4 cores 12.3 ms.",
        "<!-- from speed; 6.2 = 77 / 12.345; 24.69 = 2 * 12.345; given 2 77 -->\n6.2, 24.69 times",
        "<!-- from speed space -->\n| 3.25 | [x](results/space.json) |\n| 12.3 | |",
        "<!-- from speed; given 9.5 -->\n| `linear` | 4.75 | 9.5 |\n| `other` | 12.3 | 4.75 |",
        "<!-- from speed -->\nOn CIFAR-10 with LSH-4 12.3 ms.",
        "<!-- given -->\nPython 3.11, 0.5 seconds",
    ],
)
def test_a_page_with_measured_figures_has_no_fault(faults, text):
    assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("first\n\nA step takes 12.3 ms.", "page.md:3: 12.3: of which measurement?"),
        ("It is 40 % more, 3 times.", "40 %, 3 times: of which measurement?"),
        ("<!-- from speed -->\nA step takes 12.4 ms.", "12.4 is in none of the files"),
        ("<!-- from speed -->\n| 17.4 kB |", "17.4 is in none of the files"),
        ("<!-- from speed -->\n80 %, of 5", "80 is in none of the files"),
        ("<!-- from speed -->\nAfter 77 seconds", "77 is in none of the files"),
        ("<!-- from speed -->\nAt 0.5 of 8 heads", "0.5 is in none of the files"),
        ("<!-- from speed space -->\n| `linear` | 12.3 |", "12.3 is in none of the files"),
        ("<!-- from speed space -->\n| 12.3 | [x](results/space.json) |", "12.3 is in none of"),
        ("<!-- from speed -->\nA curve's 3.5", "3.5 is in none of the files"),
        ("<!-- from speed; given 77; 6.3 = 77 / 12.345 -->\n6.3 times", "6.3 is 6.2373 by 77"),
        ("<!-- from speed; 8 = 78 / 9.75 -->\n8 times", "78 of '8 = 78 / 9.75' is in none"),
        ("<!-- from speed; 8 = f(1) -->\n8 times", "is no figure and its formula"),
        ("<!-- from spede -->\n8 times", "spede.json is not in"),
    ],
)
def test_a_figure_without_a_measurement_is_found(faults, text, fault):
    assert fault in " ".join(faults(text))


def test_a_measurement_that_changes_makes_its_figures_faults(faults, tmp_path):
    text = "<!-- from speed -->\nA step takes 12.3 ms."
    assert faults(text) == []
    Path(tmp_path / "speed.json").write_text(json.dumps({"rows": [{"ms": 11.9}]}))
    assert faults(text) == ["page.md:1: 12.3 is in none of the files"]
