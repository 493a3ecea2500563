"""Compile the C++ and CUDA of this package for the present machine, on first use."""

import ctypes
import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
CPP_FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-tree-loop-distribute-patterns",
)


@cache
def compiled(source: str) -> ctypes.CDLL | str:
    """Return the functions of a source file beside this one, or why they cannot be compiled."""
    cuda = source.endswith(".cu")
    flags = _cuda_flags() if cuda else CPP_FLAGS
    texts = [path.read_text() for path in (FOLDER / source, *sorted(FOLDER.glob("*.h")))]
    made_for = (torch.__version__, os.environ.get("TORCH_CUDA_ARCH_LIST", "") if cuda else _cpu())
    digest = hashlib.sha256("\n".join((*texts, *flags, *made_for)).encode()).hexdigest()[:16]
    kept = _cache() / f"{Path(source).stem}-{digest}.so"
    try:
        if not kept.is_file():
            _compile(FOLDER / source, kept, flags)
        return ctypes.CDLL(str(kept))
    except (RuntimeError, OSError) as error:
        return _reason(str(error))


def _compile(source: Path, target: Path, flags: Sequence[str]) -> None:
    """Compile in a temporary folder, then rename: no lock can be left behind."""
    # Imported here: it is slow to import, and warns about CUDA where that does not matter.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import cpp_extension

    cuda = source.suffix == ".cu"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        if cuda:
            _offer_cuda_runtime(Path(folder))
        built = cpp_extension.load(
            f"linear_transformers_{source.stem}", [str(source)], build_directory=folder,
            extra_cflags=None if cuda else list(flags),
            extra_cuda_cflags=list(flags) if cuda else None,
            extra_ldflags=[f"-L{folder}" if cuda else "-fopenmp"],
            with_cuda=cuda, is_python_module=False,
        )  # fmt: skip
        Path(str(built)).replace(target)


def _offer_cuda_runtime(folder: Path) -> None:
    """Link the CUDA runtime that torch has loaded into the folder.

    torch's builder looks for one beside nvcc, where there is none if nvcc is a script, or came
    with pip.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = [line.split()[-1] for line in lines if "/libcudart.so" in line]
    if loaded:
        (folder / "libcudart.so").symlink_to(loaded[0])


def _reason(text: str) -> str:
    """Return the line of a builder's output that says what is wrong."""
    lines = text.splitlines()
    found = [line for line in lines if "error: " in line or "cannot find" in line]
    return (found or lines or ["it could not be compiled"])[0].rstrip(".")


def _cache() -> Path:
    """Return the folder of compiled kernels: torch's own, if its variable is set."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or user) / "linear_transformers"


def _cuda_flags() -> tuple[str, ...]:
    """Return flags for the current GPU, unless torch's own variable names others."""
    if os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return ("-O3",)
    return ("-O3", "-arch=sm_{}{}".format(*torch.cuda.get_device_capability()))


def _cpu() -> str:
    """Return what `-march=native` depends on: different machines may share a home directory."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    features = [line for line in lines if line.startswith(("flags", "Features"))]
    return features[0] if features else platform.processor()
