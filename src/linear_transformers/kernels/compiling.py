"""C++ and CUDA of this package: compiled for the present machine when it is first wanted, kept,
and called with tensors."""

import ctypes
import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
    """The functions of a source file beside this one, or why there are none here."""
    cuda = source.endswith(".cu")
    flags = _cuda_flags() if cuda else CPP_FLAGS
    texts = [path.read_text() for path in (FOLDER / source, *sorted(FOLDER.glob("cpp_*.h")))]
    made_for = (torch.__version__, os.environ.get("TORCH_CUDA_ARCH_LIST", "") if cuda else _cpu())
    digest = hashlib.sha256("\n".join((*texts, *flags, *made_for)).encode()).hexdigest()[:16]
    kept = _cache() / f"{Path(source).stem}-{digest}.so"
    try:
        if not kept.is_file():
            _compile(FOLDER / source, kept, flags)
        return ctypes.CDLL(str(kept))
    except (RuntimeError, OSError) as error:
        return _reason(str(error))


class Sizes(ctypes.Structure):
    """Of one call of causal linear attention."""

    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("batch", "length", "heads", "features", "values")
    )


class View(ctypes.Structure):
    """Queries, keys or values [b, t, h, c or m], with any strides but the last."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("batch", ctypes.c_int64), ("position", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )  # fmt: skip


def call(
    function: Any, views: Sequence[Tensor], dense: Sequence[Tensor], *others: Any
) -> int | None:
    """Call a compiled function of causal linear attention.

    Args:
        function: Takes `Sizes`, three `View`s, pointers, and others.
        views: Queries, keys and values; copied where the last of their strides is not 1.
        dense: What the pointers point to, copied where there are gaps. Results have none.
        others: Passed on.
    """
    # Named until the call is over: what is copied here must not be freed before.
    views = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in views)
    dense = tuple(x.contiguous() for x in dense)
    return function(
        Sizes(*views[0].shape, views[2].shape[-1]),
        *(View(x.data_ptr(), *x.stride()[:3]) for x in views),
        *(ctypes.c_void_p(x.data_ptr()) for x in dense),
        *others,
    )


def _compile(source: Path, target: Path, flags: Sequence[str]) -> None:
    """Compile where no other process looks, then rename: there is no lock to be left behind."""
    # Not above: it is slow to import, and tells of CUDA where that does not matter.
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
    """The one that torch has loaded. Its builder looks for one beside nvcc, where there is none if
    nvcc is a script, or came with pip."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = [line.split()[-1] for line in lines if "/libcudart.so" in line]
    if loaded:
        (folder / "libcudart.so").symlink_to(loaded[0])


def _reason(text: str) -> str:
    """The line of a builder's output that says what is wrong."""
    lines = text.splitlines()
    found = [line for line in lines if "error: " in line or "cannot find" in line]
    return (found or lines or ["it could not be compiled"])[0].rstrip(".")


def _cache() -> Path:
    """Where compiled kernels are kept: torch's own place, where that is set."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or user) / "linear_transformers"


def _cuda_flags() -> tuple[str, ...]:
    """For the GPU that is used now, unless torch's own variable names others."""
    if os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return ("-O3",)
    return ("-O3", "-arch=sm_{}{}".format(*torch.cuda.get_device_capability()))


def _cpu() -> str:
    """What `-march=native` depends on: a home directory may be shared by different machines."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    features = [line for line in lines if line.startswith(("flags", "Features"))]
    return features[0] if features else platform.processor()
