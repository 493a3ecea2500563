"""Files are whole or absent, whatever happens to whoever writes them."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from linear_transformers.files import remove_leftovers, replacing

WRITER = """
import sys
from pathlib import Path
from linear_transformers.files import remove_leftovers, replacing
with replacing(Path(sys.argv[1])) as partial, partial.open("w") as file:
    file.write(sys.argv[2] * 100_000)
    file.flush()
    print("written", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("before")
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written_takes_the_place_of_the_target(target):
    with replacing(target) as partial:
        assert partial.parent == target.parent
        assert partial.name.startswith(".")
        assert partial.suffix == ".part"
        assert str(os.getpid()) in partial.name
        partial.write_text("after")
        assert target.read_text() == "before"
    assert target.read_text() == "after"
    assert names(target.parent) == ["a.json"]


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
def test_a_failed_or_interrupted_write_leaves_the_target_as_it_was(target, error):
    def write() -> None:
        with replacing(target) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert target.read_text() == "before"
    assert names(target.parent) == ["a.json"]


def test_a_body_that_wrote_nothing_replaces_nothing(target):
    with pytest.raises(FileNotFoundError), replacing(target):
        pass
    assert target.read_text() == "before"


def test_it_is_on_the_disk_before_it_has_its_name(target, monkeypatch):
    """After a power cut there is the old file or the new one, never an empty one."""
    at_flush = []
    flush = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (at_flush.append(target.read_text()), flush(file))
    )
    with replacing(target) as partial:
        partial.write_text("after")
    assert at_flush == ["before", "after"]  # the file, then the folder


def test_a_folder_is_whole_or_absent_as_well(tmp_path):
    folder = tmp_path / "corpus"
    for error in (KeyboardInterrupt, None):
        with contextlib.suppress(KeyboardInterrupt), replacing(folder) as partial:
            (partial / "train").mkdir(parents=True)
            (partial / "train/a.txt").write_text("a")
            if error:
                raise error
        assert names(tmp_path) == ([] if error else ["corpus"])
    assert (folder / "train/a.txt").read_text() == "a"
    with pytest.raises(OSError, match="not empty"), replacing(folder) as partial:
        partial.mkdir()
    assert names(tmp_path) == ["corpus"]


def start(target: Path, letter: str) -> subprocess.Popen:
    """Start a process that has written, and waits before it ends."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target), letter],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    return writer


def test_two_processes_write_one_after_the_other_and_never_a_mixture(target):
    first, second = start(target, "x"), start(target, "y")
    assert target.read_text() == "before"
    assert len(names(target.parent)) == 3
    for writer, letter in ((second, "y"), (first, "x")):
        writer.communicate("\n")
        assert writer.returncode == 0
        assert target.read_text() == letter * 100_000
    assert names(target.parent) == ["a.json"]


def test_ctrl_c_removes_what_was_begun(target):
    writer = start(target, "x")
    writer.send_signal(signal.SIGINT)
    writer.communicate()
    assert writer.returncode != 0
    assert target.read_text() == "before"
    assert names(target.parent) == ["a.json"]


def test_what_killed_processes_left_is_removed_and_nothing_else(target):
    running, killed = start(target, "x"), start(target, "y")
    killed.kill()
    killed.communicate()
    assert len(names(target.parent)) == 3
    (target.parent / ".mine.part").write_text("kept")
    remove_leftovers(target.parent)
    assert len(names(target.parent)) == 3  # the target, mine, and what is being written
    running.communicate("\n")
    assert names(target.parent) == [".mine.part", "a.json"]
    assert target.read_text() == "x" * 100_000
