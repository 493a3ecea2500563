"""Compile the C++ of this package for the present machine, on first use."""

import ctypes
import hashlib
import logging
import os
import platform
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from linear_transformers.files import partial_of, remove_leftovers

log = logging.getLogger(__name__)
FOLDER = Path(__file__).parent
FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-tree-loop-distribute-patterns",
)


def uncompiled(source: str, device: torch.device) -> str | None:
    """Return why the functions of a source file cannot run on a device's tensors, or None."""
    if device.type != "cpu":
        return f"it is made for CPUs, and the tensors are on {device}"
    library = compiled(source)
    return library if isinstance(library, str) else None


@cache
def compiled(source: str) -> ctypes.CDLL | str:
    """Return the functions of a source file beside this one, or why they cannot be compiled."""
    texts = [path.read_text() for path in (FOLDER / source, *sorted(FOLDER.glob("*.h")))]
    made_for = (torch.__version__, _cpu())
    digest = hashlib.sha256("\n".join((*texts, *FLAGS, *made_for)).encode()).hexdigest()[:16]
    try:
        name = f"{Path(source).stem}-{digest}"
        kept = _kept(cache_folder(), name) or _compile(FOLDER / source, cache_folder(), name)
        return ctypes.CDLL(str(kept))
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        reason = _reason(str(error))
        log.warning("note     %s was not compiled, so slower code runs: %s", source, reason)
        return reason


def _kept(folder: Path, name: str) -> Path | None:
    """Return the library that was compiled before, if its contents are those that its file's name
    says: a damaged one would kill whoever loads it."""
    for library in folder.glob(f"{name}-*.so"):
        if library.stem.removeprefix(f"{name}-") == _digest(library):
            return library
        log.warning("note     %s is damaged, and compiled again", library)
        library.unlink(missing_ok=True)
    return None


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:16]


def _compile(source: Path, target: Path, name: str) -> Path:
    """Compile in a folder of this process, then rename: no lock can be left behind."""
    # Imported here: it is slow to import, and warns about CUDA where that does not matter.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import cpp_extension

    remove_leftovers(target)  # of builds that were killed
    part = partial_of(target / name).name
    with tempfile.TemporaryDirectory(prefix=".", suffix=part, dir=target) as folder:
        built = cpp_extension.load(
            f"linear_transformers_{source.stem}", [str(source)], build_directory=folder,
            extra_cflags=list(FLAGS), extra_ldflags=["-fopenmp"], with_cuda=False,
            is_python_module=False,
        )  # fmt: skip
        library = Path(str(built))
        return library.replace(target / f"{name}-{_digest(library)}.so")


def _reason(text: str) -> str:
    """Return the line of a builder's output that says what is wrong."""
    lines = text.splitlines()
    told = ("error: ", "cannot find", ": not found")
    found = [line for line in lines if any(words in line for words in told)]
    return (found or lines or ["it could not be compiled"])[0].rstrip(".")


def cache_folder() -> Path:
    """Return the folder of compiled kernels, of this user alone: torch's own, if its variable is
    set.

    Raises:
        RuntimeError: Others may write it: what they put there would run.
        OSError: It cannot be made.
    """
    user = os.environ.get("TORCH_EXTENSIONS_DIR") or os.environ.get("XDG_CACHE_HOME")
    if user is not None:
        folder = Path(user) / "linear_transformers"
    else:
        try:
            folder = Path.home() / ".cache/linear_transformers"
        except RuntimeError:  # a container's user without an entry
            folder = Path(tempfile.gettempdir()) / f"linear_transformers-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = folder.stat()
    if hasattr(os, "getuid") and (
        state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise RuntimeError(
            f"{folder} may be written by others. Remove it, or set TORCH_EXTENSIONS_DIR=DIR"
        )
    return folder


def _cpu() -> str:
    """Return what `-march=native` depends on: different machines may share a home directory."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    features = [line for line in lines if line.startswith(("flags", "Features"))]
    return features[0] if features else platform.processor()
