"""The command `linear-transformers`: the same programs, wherever the package is installed."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from linear_transformers.config.folder import Configurations

COMMAND = Path(sys.executable).with_name("linear-transformers")


def said(*arguments: str, cwd: Path, **environment: str) -> str:
    """Call the command, which must succeed; return what it printed."""
    outcome = subprocess.run(
        [COMMAND, *arguments], cwd=cwd, env=os.environ | environment, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_it_says_what_it_is_and_what_it_can_do(tmp_path):
    assert said("--version", cwd=tmp_path).strip() == version("linear-transformers")
    overview = said("--help", cwd=tmp_path)
    assert overview == said(cwd=tmp_path)
    for program in Configurations.programs():
        assert f"  {program}" in overview
        help_of_it = said(program, "--help", cwd=tmp_path)
        assert f"linear-transformers {program}" in help_of_it
        assert "uv run" not in help_of_it
    assert not list(tmp_path.iterdir())


def test_a_wrong_program_gets_one_line(tmp_path):
    module = [sys.executable, "-m", "linear_transformers", "trian"]
    outcome = subprocess.run(module, cwd=tmp_path, capture_output=True, text=True)
    assert outcome.returncode == 1
    assert outcome.stderr == "error: trian is no program. Did you mean train?\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str]:
    """A folder where a run was trained, and what was printed."""
    folder = tmp_path_factory.mktemp("anywhere")
    small = ("model.num_layers=1", "model.num_heads=1", "model.model_dim=8", "debug=step")
    quiet = ("trainer=cpu", "logger=none", "run_id=a")
    return folder, said("train", *small, *quiet, cwd=folder)


def test_runs_go_below_the_folder_where_one_is(trained):
    folder, printed = trained
    assert "run      runs/a" in printed
    assert (folder / "runs/a/checkpoints/best.ckpt").is_file()
    assert [path.name for path in folder.iterdir()] == ["runs"]


def test_the_next_command_can_be_pasted(trained):
    folder, printed = trained
    (line,) = (line for line in printed.splitlines() if line.startswith("next"))
    _, *words = line.split()
    assert words == ["linear-transformers", "sample", "ckpt=runs/a"]
    assert "grid.png" in said(*words[1:], "images=1", "gif=false", cwd=folder)


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("linear-transformers tr", {"train", "transcribe", "translate"}),
        ("linear-transformers train model=ls", {"model=lsh1", "model=lsh4", "model=lstm"}),
        ("linear-transformers train optimizer.l", {"optimizer.lr="}),
    ],
)
def test_a_shell_completes_it(tmp_path, line, choices):
    script = f"""
        eval "$(linear-transformers --completion)"
        COMP_LINE={line!r} COMP_WORDS=({line}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _linear_transformers
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{COMMAND.parent}:{os.environ['PATH']}"
    outcome = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=os.environ | {"PATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {*outcome.stdout.split()} == choices
