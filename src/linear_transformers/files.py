"""Files that are whole or absent."""

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError

HOST = socket.gethostname()
# What numpy raises where an array's file is damaged: it parses the header as Python.
NO_ARRAY = (OSError, EOFError, ValueError, TypeError, SyntaxError, TokenError)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write a file or a folder at, and move what is there to `path` at the end.

    If the body fails or is interrupted, what it wrote is removed and `path` is as it was. Two
    processes may replace the same path: the last one to end wins. A folder does not replace
    another one that holds anything.

    Args:
        path: The target. Its parent exists.

    Raises:
        OSError: The body wrote nothing, or the target cannot be replaced.
    """
    partial = partial_of(path)
    try:
        with naming(path):
            yield partial
            for written in (*partial.rglob("*"), partial) if partial.is_dir() else (partial,):
                _flush(written)  # else a power cut leaves the new name with nothing in it
            partial.replace(path)
            _flush(path.parent)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Name a file in what goes wrong with it: a full disk names none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def partial_of(path: Path) -> Path:
    """Return the path beside a target at which this process, and no other, writes."""
    return path.with_name(f".{path.name}-{os.getpid()}@{HOST}.part")


def numbered(path: Path) -> dict[int, Path]:
    """Return the files or folders of a name, by number and in order: `a.json`, `a-2.json`, ..."""
    found = {}
    for file in path.parent.glob(f"{path.stem}*{path.suffix}"):
        if match := re.fullmatch(rf"{path.stem}(?:-(\d+))?{path.suffix}", file.name):
            found[int(match[1] or 1)] = file
    return dict(sorted(found.items()))


def next_numbered(path: Path) -> Path:
    """Return the path that follows the files of a name; one of them may have been removed."""
    number = max(numbered(path), default=0) + 1
    return path if number == 1 else path.with_stem(f"{path.stem}-{number}")


def room(path: Path) -> str:
    """Return in words how much is free on the disk of a file, or of the folder it is to be in."""
    folder = next(parent for parent in (path, *path.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(folder).free
    amount = f"{free / 1e9:.1f} GB" if free > 1e8 else f"{free / 1e6:.1f} MB"
    return f"{amount} are free there"


def mend_lines(path: Path) -> bool:
    """Remove the end of a last line that a killed process left torn.

    Returns:
        Whether there was one.
    """
    if not path.is_file():
        return False
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole == len(text):
        return False
    os.truncate(path, whole)
    return True


def remove_leftovers(folder: Path, *, alone: bool = False) -> None:
    """Remove what processes left half-written in a folder when they were killed.

    Args:
        folder: The folder.
        alone: Whether no other process writes here. Else what is left by other machines stays:
            theirs may be at work.
    """
    for partial in folder.glob(".*.part"):
        process = re.search(rf"-(\d+)@{re.escape(HOST)}\.part$", partial.name)
        if alone or (process is not None and not _is_alive(int(process[1]))):
            shutil.rmtree(partial) if partial.is_dir() else partial.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    if not path.is_dir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        return
    with contextlib.suppress(OSError):  # not every system opens a folder, or flushes it
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
