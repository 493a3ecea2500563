"""Each notebook is a script that proves what it says, and the same with outputs beside it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT

SCRIPTS = sorted((PROJECT / "notebooks").glob("*.py"))
NAMES = [script.stem for script in SCRIPTS]


def cells(script: Path) -> list[str]:
    """Return the cells of a script in percent format, as a notebook has them."""
    found = []
    for part in re.split(r"^# %%", script.read_text(), flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        text = body.strip("\n")
        if "[markdown]" in head:
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.split("\n"))
        found.append(text)
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_a_notebook_runs_and_its_claims_hold(script, tmp_path):
    outcome = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True,
        # As its reader would: Triton's interpreter, which tests ask for, takes minutes.
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        | {"SMALL": "1", "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_the_notebook_with_outputs_is_the_script(script):
    notebook = json.loads(script.with_suffix(".ipynb").read_text())
    assert ["".join(cell["source"]) for cell in notebook["cells"]] == cells(script)
    outputs = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    kinds = {kind for cell in outputs for output in cell for kind in output.get("data", {})}
    assert "image/png" in kinds
    assert not any(output["output_type"] == "error" for cell in outputs for output in cell)
