"""Modules import downward only: the contracts are in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import PROJECT


def test_the_layers_hold():
    program = Path(sys.executable).with_name("lint-imports")
    outcome = subprocess.run([program], cwd=PROJECT, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout
    assert "0 broken" in outcome.stdout
