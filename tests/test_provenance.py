"""What a figure depends on is told, and nothing that concerns nobody."""

import getpass
import json
import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from linear_transformers import provenance
from linear_transformers.calls import call_of
from linear_transformers.provenance import checkout, command, cores
from tests.conftest import PROJECT


def git(folder: Path, *arguments: str) -> str:
    line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="the project is no git checkout here")
def test_this_process_is_described():
    told = provenance.provenance()
    assert told["commit"] == git(PROJECT, "rev-parse", "HEAD")
    changed = git(PROJECT, "status", "--porcelain", "--untracked-files=no").splitlines()
    assert told["clean"] == all(re.match(r" ?\S+ +(results/|RESULTS\.md)", x) for x in changed)
    assert told["versions"]["python"] == platform.python_version()
    assert told["versions"]["torch"].startswith("2.")
    machine = told["machine"]
    assert machine["processor"]
    assert 1 <= machine["cores"] <= (os.cpu_count() or 1)
    assert 0.1 < machine["memory_gb"] < 1e5
    assert json.loads(json.dumps(told)) == told
    words = json.dumps(told)
    for secret in (str(PROJECT), str(Path.home()), socket.gethostname()):
        assert secret not in words
    assert f"/{getpass.getuser()}" not in words


def test_it_costs_neither_torch_nor_time():
    """A run's folder is to have it before anything slow is imported."""
    line = "import sys; from linear_transformers.provenance import provenance; provenance();"
    line += "print(sorted({'torch', 'numpy', 'lightning', 'hydra'} & set(sys.modules)))"
    outcome = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True)
    assert outcome.stdout == "[]\n", outcome.stderr


def test_the_instructions_are_those_that_products_depend_on(monkeypatch):
    files = {
        "model name\t: AMD EPYC\nflags\t: fpu avx avx2 avx512f avx512bw avx512_vnni amx_tile\n":
            ("AMD EPYC", ["amx_tile", "avx2", "avx512_vnni", "avx512f"]),
        "Features\t: fp asimd crc32 sve bf16\nCPU part\t: 0xd40\n":
            (platform.processor() or platform.machine(), ["asimd", "bf16", "sve"]),
    }  # fmt: skip
    for text, expected in files.items():
        monkeypatch.setattr(Path, "read_text", lambda _, text=text: text)
        machine = provenance.machine()
        assert (machine["processor"], machine["instructions"]) == expected


def test_the_command_is_the_one_to_type(monkeypatch):
    module = PROJECT / "benchmarks/operators.py"
    for typed, expected in {
        (PROJECT / "train.py", "data=digits", "model.dropout=0.1"):
            "uv run train.py data=digits model.dropout=0.1",
        ("train.py", "experiment=paper/mnist/linear", "tags=[a, b]"):
            "uv run train.py experiment=paper/mnist/linear 'tags=[a, b]'",
        (module, "--shapes", "1x16"): "uv run python -m benchmarks.operators --shapes 1x16",
        (module, PROJECT / "runs/a"): "uv run python -m benchmarks.operators runs/a",
    }.items():  # fmt: skip
        monkeypatch.setattr(sys, "argv", [str(word) for word in typed])
        monkeypatch.chdir(PROJECT)
        assert command() == expected


def test_packages_of_ones_own_are_in_the_command(monkeypatch, tmp_path):
    """Those that uv was given: `uv run --with-editable ../mine train.py`."""
    info = tmp_path / "mine-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: mine\nVersion: 0.1\n")
    origin = {"url": (tmp_path / "my mine").as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(PROJECT)
    monkeypatch.setattr(sys, "argv", [str(PROJECT / "train.py"), "model=mine"])
    folder = os.path.relpath(tmp_path / "my mine")
    assert call_of("sample") == f"uv run --with-editable '{folder}' sample.py"
    assert command() == "uv run --with-editable '.../my mine' train.py model=mine"


def test_no_place_of_the_machine_is_in_the_command(monkeypatch):
    monkeypatch.setenv("HOME", "/home/joe")
    for argument, expected in {
        "data.root=/home/joe/data": "data.root=~/data",
        "paths.runs=/mnt/joe/runs": "paths.runs=.../runs",
        "data.path=/mnt/Joe Doe/my x=1 (a)/b.npz": "data.path=.../b.npz",
        "data.path='/mnt/Joe, Doe/b c',/home/joe/d": "data.path='.../b c',~/d",
        "files=[/mnt/joe/a,/mnt/joe/b]": "files=[.../a,.../b]",
        "data.path=${paths.data}/a.npz": "data.path=${paths.data}/a.npz",
        "logger.uri=sqlite:////mnt/joe/a.db": "logger.uri=sqlite://.../a.db",
        "logger.uri=https://example.org/a": "logger.uri=https://example.org/a",
    }.items():
        assert provenance.without_places(argument) == expected


def test_changes_since_the_commit_are_told_and_a_foreign_checkout_is_not(tmp_path, monkeypatch):
    monkeypatch.delenv(provenance.COMMIT, raising=False)
    unknown = {"commit": None, "clean": None}
    file = tmp_path / "train.py"
    file.write_text("1")
    (tmp_path / "other.py").write_text("1")
    assert checkout(file) == unknown
    git(tmp_path, "init")
    git(tmp_path, "add", "other.py")
    git(tmp_path, "commit", "-m", "one")
    assert checkout(file) == unknown  # somebody else's checkout
    (tmp_path / "results").mkdir()
    (tmp_path / "results/speed.json").write_text("1")
    git(tmp_path, "add", "train.py", "results")
    git(tmp_path, "commit", "-m", "two")
    git(tmp_path, "tag", "-a", "v1", "-m", "a tag is no commit")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "new.py").write_text("untracked")
    assert checkout(file) == {"commit": commit, "clean": True}
    (tmp_path / "results/speed.json").write_text("2")  # as the run before this one may have done
    assert checkout(file) == {"commit": commit, "clean": True}
    (tmp_path / "other.py").write_text("2")
    assert checkout(file) == {"commit": commit, "clean": False}


def test_a_copy_is_told_its_commit(tmp_path, monkeypatch):
    """It has no .git, or one that was not copied with it."""
    file = tmp_path / "git/train.py"
    file.parent.mkdir()
    file.write_text("1")
    git(file.parent, "init")
    git(file.parent, "add", "train.py")
    git(file.parent, "commit", "-m", "one")
    for state, clean in (("abc", True), ("abc-dirty", False)):
        monkeypatch.setenv(provenance.COMMIT, state)
        for place in (tmp_path / "train.py", file):
            assert checkout(place) == {"commit": "abc", "clean": clean}


def test_a_continued_run_keeps_what_it_was_started_with(tmp_path, monkeypatch):
    assert provenance.read_provenance(tmp_path) == []
    for number in range(11):
        monkeypatch.setattr(sys, "argv", ["train.py", f"seed={number}"])
        provenance.write_provenance(tmp_path, provenance.provenance())
    commands = [start["command"] for start in provenance.read_provenance(tmp_path)]
    assert commands == [f"uv run train.py seed={number}" for number in range(11)]


def test_a_start_is_written_over_none_and_a_damaged_one_is_named(tmp_path, raises_one_line):
    first = provenance.write_provenance(tmp_path, {"command": "first"})
    provenance.write_provenance(tmp_path, {"command": "second"})
    first.write_text("{")
    with raises_one_line("provenance.json is damaged", "Remove it"):
        provenance.read_provenance(tmp_path)
    first.unlink()
    provenance.write_provenance(tmp_path, {"command": "third"})
    commands = [start["command"] for start in provenance.read_provenance(tmp_path)]
    assert commands == ["second", "third"]


def test_a_gpu_is_described(monkeypatch):
    torch = pytest.importorskip("torch")
    properties = type("Properties", (), {"name": "NVIDIA H200", "total_memory": 150e9})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build\n"
    monkeypatch.setattr(Path, "read_text", lambda _: line)
    gpu = provenance.machine()["gpu"]
    assert gpu == {
        "name": "NVIDIA H200", "count": 2, "memory_gb": 150.0, "driver": "570.86.15",
        "cuda": torch.version.cuda,
    }  # fmt: skip


@pytest.mark.parametrize(("cpus", "tasks", "expected"), [(1, None, 1), (8, 4, 2), (1, 2, 1)])
def test_a_task_of_slurm_has_its_share_of_the_cores(monkeypatch, cpus, tasks, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(64), raising=False)
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    assert cores() == 64
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", str(cpus))
    if tasks:
        monkeypatch.setenv("SLURM_NTASKS_PER_NODE", str(tasks))
    assert cores() == expected
