"""Causal linear attention in C++ for CPUs: `cpp_linear.cpp`, compiled on first use."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linear_transformers.kernels.call import BACKWARD, FORWARD, Call, call
from linear_transformers.kernels.compiling import compiled, uncompiled
from linear_transformers.kernels.operator import Given, operator, refuse

SOURCE = "cpp_linear.cpp"
NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernel cannot run, or None. The first call compiles it."""
    return uncompiled(SOURCE, device)


def _forward(given: Given, eps: float, elu: bool, results: Sequence[Tensor]) -> None:
    _run("forward", FORWARD, (*given, *results), eps=eps, elu=elu)


def _backward(given: Given, elu: bool, gradients: Sequence[Tensor | None]) -> None:
    _run("backward", BACKWARD, (*given, *gradients), elu=elu)


def _run(name: str, names: Sequence[str], tensors: Sequence[Any], **others) -> None:
    v = tensors[2]
    refuse("cpp", unavailable(v.device, v.dtype))
    function = getattr(compiled(SOURCE), f"{name}_{NAMES[v.dtype]}")
    call(function, Call, dict(zip(names, tensors, strict=True)), **others)


cpp_linear = operator("cpp_causal", _forward, _backward, dtypes=NAMES)
