"""Files that are whole or absent."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    partial = path.with_name(f".{path.name}-{os.getpid()}.part")
    try:
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


def remove_leftovers(folder: Path) -> None:
    """Remove what processes of this machine left half-written in a folder when they were killed."""
    for partial in folder.glob(".*.part"):
        process = re.search(r"-(\d+)\.part$", partial.name)
        if process is not None and not _is_alive(int(process[1])):
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
