"""What is timed is a program that did what it should."""

import sys

import pytest

from benchmarks import startup

EXITS = [sys.executable, "-IS", "-c", "raise SystemExit('error: no memory')"]


def test_a_case_that_fails_has_no_time():
    cases = {startup.TORCH: [sys.executable, "-IS", "-c", ""], startup.GONE: EXITS}
    rows = startup.measured(cases, "compiled", 1)
    assert [row["case"] for row in rows] == [*cases]
    with pytest.raises(SystemExit, match=r"^error: lt.load failed: error: no memory$"):
        startup.measured({**cases, "lt.load": EXITS}, "compiled", 1)


def test_bytecode_is_there_or_not(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["startup", "--bytecode", "compield"])
    monkeypatch.setattr(startup, "prepared", lambda folder: pytest.fail("it began"))
    with pytest.raises(SystemExit):
        startup.main()
    assert "invalid choice: 'compield'" in capsys.readouterr().err
