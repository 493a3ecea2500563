"""The registry of kernels of causal linear attention: where each can run, which is fastest."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linear_transformers.config.ranges import check_choice
from linear_transformers.kernels import cpp_linear
from linear_transformers.kernels.operator import WIDEST, constant, refuse, too_wide
from linear_transformers.ops.chunkwise import chunkwise
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.recurrent import LinearState


class Kernel(NamedTuple):
    """An implementation of causal linear attention over a whole sequence.

    Attributes:
        run: (q, k, v, *, eps, phi=None, state=None) -> (outputs, state after the sequence), as
            `parallel` defines it. The kernel fuses phi or applies it.
        unavailable: (device, dtype of the values) -> why the kernel cannot run, or None.
        widest: The most features or values of a head; None is any.
    """

    run: Callable[..., tuple[Tensor, LinearState]]
    unavailable: Callable[[torch.device, torch.dtype], str | None] = lambda device, dtype: None
    widest: int | None = None


def chosen(
    name: str, device: torch.device, dtype: torch.dtype = torch.float32, *, width: int = 1
) -> str:
    """Return the name of the kernel that runs: the one asked for, or the fastest for `auto`.

    On `meta`, where shapes alone are, products that can be counted stand in for what is compiled.

    Args:
        name: `auto`, or a name of `KERNELS`.
        device: The device of the tensors.
        dtype: The type of the values.
        width: The most features or values of a head.

    Raises:
        ValueError: The kernel is unknown, or cannot run there.
    """
    check_known(name)
    reason = None if name == "auto" else _unavailable(name, device, dtype, width)
    if name == "auto" or (reason and device.type == "meta"):
        return _fastest(device, dtype, width)
    refuse(name, reason)
    return name


def check_known(name: str) -> None:
    """Check the name of a kernel.

    Raises:
        ValueError: It is neither `auto` nor one of `KERNELS`.
    """
    check_choice("kernel", name, ("auto", *KERNELS))


@constant
def triton_unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why Triton's kernels cannot run on values of a type on a device, or None."""
    if not has_triton():
        return "Triton is not installed"
    from linear_transformers.kernels.triton_linear import unavailable

    return unavailable(device, dtype)


def step_in_place(*inputs: Any, **options: Any) -> tuple[Tensor, LinearState]:
    """Call `triton_step`."""
    from linear_transformers.kernels.triton_step import triton_step

    return triton_step(*inputs, **options)


def _triton(*inputs: Any, **options: Any) -> tuple[Tensor, LinearState]:
    # Imported only here: Triton is slow to import, and does not exist for every system.
    from linear_transformers.kernels.triton_linear import triton_linear

    return triton_linear(*inputs, **options)


@cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


@constant
def _fastest(device: torch.device, dtype: torch.dtype, width: int) -> str:
    fast = FASTEST.get(device.type)
    return fast if fast and not _unavailable(fast, device, dtype, width) else "chunkwise"


@constant
def _unavailable(name: str, device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    kernel = KERNELS[name]
    return kernel.unavailable(device, dtype) or too_wide(width, kernel.widest)


KERNELS = {
    "parallel": Kernel(parallel),
    "chunkwise": Kernel(chunkwise),
    "cpp": Kernel(cpp_linear.cpp_linear, cpp_linear.unavailable),
    "triton": Kernel(_triton, triton_unavailable, WIDEST),
}
# As measured (results/operators-*.json), on a GPU for heads of 32; others by analogy.
FASTEST = {"cpu": "cpp", "cuda": "triton"}
