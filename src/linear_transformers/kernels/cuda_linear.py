"""Causal linear attention in CUDA: `cuda_linear.cu`, compiled by nvcc for the GPU on first use.

It is the paper's algorithm: each head goes from the first position to the last, where
`triton_linear` computes the chunks of a sequence in parallel.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linear_transformers.kernels.call import BACKWARD, FORWARD, call
from linear_transformers.kernels.compiling import compiled
from linear_transformers.kernels.operator import WIDEST, Given, operator, refuse, too_wide

SOURCE = "cuda_linear.cu"
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernel cannot run, or None. The first call compiles it."""
    if device.type != "cuda":
        return f"it is made for GPUs, and the tensors are on {device}"
    if dtype == torch.float64:
        return "it has no float64"
    library = compiled(SOURCE)
    return library if isinstance(library, str) else None


def _forward(given: Given, eps: float, elu: bool, results: Sequence[Tensor]) -> None:
    _run("forward", FORWARD, (*given, *results), eps=eps, elu=elu)


def _backward(given: Given, elu: bool, gradients: Sequence[Tensor | None]) -> None:
    weight: Any = given[6]
    h = torch.empty_like(weight)
    _run("backward", (*BACKWARD, "h"), (*given, *gradients, h), elu=elu)


def _run(name: str, names: Sequence[str], tensors: Sequence[Any], **others) -> None:
    q, _, v, *_ = tensors
    refuse(
        "cuda", too_wide(max(q.shape[-1], v.shape[-1]), WIDEST) or unavailable(v.device, v.dtype)
    )
    library: Any = compiled(SOURCE)
    function = getattr(library, f"{name}_{NAMES[v.dtype]}")
    if error := call(function, names, tensors, stream=_stream(v.device), **others):
        library.message.restype = ctypes.c_char_p
        raise RuntimeError(f"kernel=cuda failed: {library.message(error).decode()}.")


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


cuda_linear = operator("cuda_causal", _forward, _backward, dtypes=NAMES)
