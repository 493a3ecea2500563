"""C++ of this package, compiled for the present processor when it is first wanted, and kept."""

import ctypes
import hashlib
import logging
import os
import platform
import tempfile
from functools import cache
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-tree-loop-distribute-patterns",
)


@cache
def compiled(source: str) -> ctypes.CDLL | str:
    """The functions of a source file beside this one, or why there are none here."""
    texts = [path.read_text() for path in (FOLDER / source, *sorted(FOLDER.glob("cpp_*.h")))]
    made_of = "\n".join((*texts, *FLAGS, torch.__version__, _cpu()))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    kept = _cache() / f"{Path(source).stem}-{digest}.so"
    try:
        if not kept.is_file():
            _compile(FOLDER / source, kept)
        return ctypes.CDLL(str(kept))
    except (RuntimeError, OSError) as error:
        return str(error).splitlines()[0].rstrip(".")


def _compile(source: Path, target: Path) -> None:
    """Compile where no other process looks, then rename: there is no lock to be left behind."""
    # Not above: it is slow to import, and tells of CUDA where that does not matter.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import cpp_extension

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = cpp_extension.load(
            f"linear_transformers_{source.stem}", [str(source)], extra_cflags=list(FLAGS),
            extra_ldflags=["-fopenmp"], build_directory=folder, with_cuda=False,
            is_python_module=False,
        )  # fmt: skip
        Path(str(built)).replace(target)


def _cache() -> Path:
    """Where compiled kernels are kept: torch's own place, where that is set."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or user) / "linear_transformers"


def _cpu() -> str:
    """What `-march=native` depends on: a home directory may be shared by different machines."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    features = [line for line in lines if line.startswith(("flags", "Features"))]
    return features[0] if features else platform.processor()
