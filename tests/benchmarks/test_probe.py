"""A machine is probed whatever it lacks."""

import os
import sys

from benchmarks import probe
from benchmarks.apart import run_apart


def test_what_cannot_be_imported_is_named(tmp_path):
    """Triton among it, without which there is no kernel to compile in another way."""
    (tmp_path / "triton.py").write_text("raise ImportError('it is not there')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "benchmarks.probe", "--device=cpu", "--check=imports"]
    _, failure = run_apart(command, seconds=100, environment={"PYTHONPATH": path})
    assert failure is not None
    assert failure.startswith("AssertionError: ")
    assert "triton (it is not there)" in failure


def test_checks_are_planned_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    assert "assembler" in [check.name for check in probe.planned("cpu")]
