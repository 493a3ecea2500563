"""Compiled kernels in a cache that was damaged, or is not this user's alone."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linear_transformers.kernels.compiling import _reason

# Not optimised, which takes a fifth of the time: what is compiled elsewhere is.
STEP = """
import torch
from linear_transformers import kernels
from linear_transformers.kernels import compiling
compiling.FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in compiling.FLAGS)
print("reason:", kernels.step_unavailable())
"""


def step(folder: Path, **environment: str) -> tuple[int, str]:
    """Ask a process of its own for the compiled step: its exit code, and what it said."""
    outcome = subprocess.run(
        [sys.executable, "-c", STEP],
        env={**os.environ, "TORCH_EXTENSIONS_DIR": str(folder), **environment},
        capture_output=True, text=True,
    )  # fmt: skip
    return outcome.returncode, outcome.stdout + outcome.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with a whole library; none without a compiler."""
    folder = tmp_path_factory.mktemp("cache")
    _, said = step(folder)
    if "reason: None" not in said:
        pytest.skip(f"no compiled step: {said}")
    return folder


def library(folder: Path) -> Path:
    (found,) = folder.glob("linear_transformers*/cpp_step-*.so")
    return found


@pytest.mark.parametrize("size", [0, 50_000])
def test_a_damaged_library_is_compiled_again(built, size):
    """A truncated one would end the process by SIGBUS when it is loaded."""
    path = library(built)
    whole = path.read_bytes()
    os.truncate(path, size)
    code, said = step(built)
    assert code == 0
    assert "is damaged, and compiled again" in said
    assert "reason: None" in said
    assert len(library(built).read_bytes()) == len(whole)
    assert "damaged" not in step(built)[1]


def test_a_killed_build_leaves_nothing_behind(built, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", STEP], env={**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)},
        start_new_session=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    folder = tmp_path / "linear_transformers"
    while not list(folder.glob(".*.part")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(folder.glob(".*.part"))
    assert "reason: None" in step(tmp_path)[1]
    assert [path.name for path in folder.iterdir()] == [library(tmp_path).name]


def test_a_cache_that_others_may_write_is_refused(built, tmp_path):
    (tmp_path / "linear_transformers").mkdir()
    (tmp_path / "linear_transformers").chmod(0o777)
    code, said = step(tmp_path)
    assert code == 0
    assert "may be written by others" in said
    assert not list((tmp_path / "linear_transformers").iterdir())


def test_the_cache_is_this_users_alone(built):
    assert (built / "linear_transformers").stat().st_mode & 0o777 == 0o700


def test_a_user_without_an_entry_and_a_home_has_a_cache(tmp_path):
    """As in a container that runs under a number."""
    somebody = ["unshare", "--user", "--map-user=54321", "env", "-u", "HOME", f"TMPDIR={tmp_path}"]
    nobodys = {name: x for name, x in os.environ.items() if not name.startswith(("TORCH", "XDG"))}
    if shutil.which("unshare") is None or subprocess.run([*somebody, "true"]).returncode:
        pytest.skip("this machine gives no user a number of its own")
    outcome = subprocess.run(
        [*somebody, sys.executable, "-c", STEP], env=nobodys, capture_output=True, text=True
    )
    assert "reason: None" in outcome.stdout, outcome.stderr
    assert library(tmp_path).parent.name == "linear_transformers-54321"


@pytest.mark.parametrize("environment", [{"PATH": "", "CXX": "no-such-compiler"}, {"CXX": "false"}])
def test_a_compiler_that_is_missing_or_fails_is_named(tmp_path, environment):
    code, said = step(tmp_path, **environment)
    assert code == 0, said
    assert "was not compiled, so slower code runs" in said


@pytest.mark.parametrize(
    "fault",
    [
        "/bin/sh: 1: no-such-compiler: not found",
        "x.cpp:3:1: error: 'y' was not declared",
        "/usr/bin/ld: cannot find -lgomp",
    ],
)
def test_of_a_builders_output_the_line_with_the_fault_is_said(fault):
    output = f"Error building extension\n[1/2] c++ -O3 -c x.cpp\n{fault}\nninja: build stopped."
    assert _reason(output) == fault
