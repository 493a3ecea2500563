"""Inputs of other axes or heads are refused in every form, within one graph when compiled."""

import subprocess
import sys

from tests.conftest import PROJECT


def test_other_axes_heads_and_numbers_are_refused():
    module = [sys.executable, "-m", "tests.attention.wrong_shapes"]
    outcome = subprocess.run(module, cwd=PROJECT, capture_output=True, text=True)
    assert outcome.stdout == "all refused\n", outcome.stderr
