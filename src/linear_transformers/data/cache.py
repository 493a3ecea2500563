"""Arrays on disk, computed once and mapped into memory."""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np

from linear_transformers.files import NO_ARRAY, replacing


def cached(
    root: Path,
    noun: str,
    facts: Iterable[object],
    compute: Callable[[], Generator[Iterable[np.ndarray]]],
    like: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays [total, ...], one after the other, and their lengths [arrays].

    Args:
        root: The folder of all caches.
        noun: What the arrays are, in the plural, for messages.
        facts: All that they depend on, as JSON has it. A cache's key is their hash.
        compute: Yields the parts of each array, in order: called at the first use ever.
        like: An array of the same type, and but for its length of the same shape.
    """
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(f"{json.dumps(fact)}\n".encode())
    folder = root / digest.hexdigest()[:16]
    if (folder / "lengths.npy").is_file():
        try:
            return _mapped(folder, noun)
        except ValueError as error:
            print(f"note     {error} They are computed again.", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    with closing(compute()) as made:  # else, on a full disk, what it has begun goes on
        _write(folder, made, like)
    return _mapped(folder, noun)


def state_of(path: Path) -> tuple[str, int, int]:
    """Return by what a file is known to be the same: its path, its size and its time.

    Raises:
        OSError: It cannot be read.
    """
    state = path.stat()
    return str(path), state.st_size, state.st_mtime_ns


def _mapped(folder: Path, noun: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        values = np.load(folder / "values.npy", mmap_mode="r")
        lengths = np.load(folder / "lengths.npy")
        whole = len(values) == lengths.sum()
    except NO_ARRAY as error:
        raise ValueError(f"The cached {noun} in {folder} are damaged ({error}).") from error
    if not whole:
        raise ValueError(f"The cached {noun} in {folder} do not belong together.")
    return values, lengths


def _write(folder: Path, made: Iterable[Iterable[np.ndarray]], like: np.ndarray) -> None:
    lengths = []
    with tempfile.TemporaryFile(dir=folder) as raw:
        for parts in made:
            lengths.append(0)
            for part in parts:
                raw.write(part.tobytes())
                lengths[-1] += len(part)
        raw.flush()
        values = np.memmap(raw, like.dtype, "r", shape=(sum(lengths), *like.shape[1:]))
        # Lengths last: their file marks a complete cache.
        for kind, array in (("values", values), ("lengths", np.array(lengths))):
            with replacing(folder / f"{kind}.npy") as partial, partial.open("wb") as file:
                np.save(file, array)
