"""What can compute causal linear attention, where, and what does if nothing is asked for."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from linear_transformers.kernels.cpp_linear import cpp
from linear_transformers.kernels.cpp_linear import unavailable as no_cpp
from linear_transformers.kernels.cuda_linear import cuda
from linear_transformers.kernels.cuda_linear import unavailable as no_cuda
from linear_transformers.kernels.operator import refuse
from linear_transformers.ops import peers
from linear_transformers.ops.chunkwise import chunkwise
from linear_transformers.ops.parallel import parallel


class Kernel(NamedTuple):
    """An algorithm over whole sequences.

    Attributes:
        run: (q, k, v, *, eps, state) -> (outputs, state after the sequence).
        unavailable: Why it cannot run on a device with values of some type; None where it can.
        fuses_elu: Whether `run` takes elu=True: queries and keys are no features yet.
    """

    run: Callable[..., Any]
    unavailable: Callable[[torch.device, torch.dtype], str | None]
    fuses_elu: bool = False


def chosen(name: str, device: torch.device, dtype: torch.dtype = torch.float32) -> str:
    """The name of the kernel that runs: the one that was asked for, or the fastest for `auto`.

    Raises:
        ValueError: What was asked for is unknown, or cannot run there.
    """
    if name == "auto":
        return _fastest(device, dtype)
    if name not in KERNELS:
        raise ValueError(f"kernel={name} is unknown. Choose one of {['auto', *KERNELS]}.")
    refuse(name, _unavailable(name, device, dtype))
    return name


@torch.compiler.assume_constant_result
def _fastest(device: torch.device, dtype: torch.dtype) -> str:
    fast = FASTEST.get(device.type)
    return fast if fast and not _unavailable(fast, device, dtype) else "chunkwise"


@torch.compiler.assume_constant_result
def _unavailable(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    return KERNELS[name].unavailable(device, dtype)


def _anywhere(device: torch.device, dtype: torch.dtype) -> None:
    return None


def _triton(*inputs, **options):
    # Only here: it is slow to import, and does not exist for every system.
    from linear_transformers.kernels.triton_linear import triton_linear

    return triton_linear(*inputs, **options)


def step_in_place(*inputs, **options):
    """`triton_step`: see there."""
    from linear_transformers.kernels.triton_step import triton_step

    return triton_step(*inputs, **options)


def triton_unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why Triton's kernels cannot run on a device, on values of a type; None where they can."""
    if not _has_triton():
        return "Triton is not installed"
    from linear_transformers.kernels.triton_linear import unavailable

    return unavailable(device, dtype)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


KERNELS = {
    "parallel": Kernel(parallel, _anywhere),
    "chunkwise": Kernel(chunkwise, _anywhere),
    "cpp": Kernel(cpp, no_cpp, fuses_elu=True),
    "triton": Kernel(_triton, triton_unavailable, fuses_elu=True),
    "cuda": Kernel(cuda, no_cuda, fuses_elu=True),
    "fast_transformers": Kernel(peers.fast_transformers, peers.no_fast_transformers),
    "fla": Kernel(peers.fla, peers.no_fla),
}
# No kernel for GPUs is one of them before it has run on a GPU, and was measured there.
FASTEST = {"cpu": "cpp"}
