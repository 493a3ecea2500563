"""Calls of kernels in C++, by queries, keys and values: `call.h` in ctypes."""

import ctypes
from collections.abc import Mapping
from typing import Any

from torch import Tensor

INPUTS = ("q", "k", "v", "kv_sum", "k_sum")
FORWARD = (*INPUTS, "out", "weight", "kv_sum_after", "k_sum_after")
BACKWARD = (
    *INPUTS, "out", "weight", "d_out", "d_kv_sum_after", "d_k_sum_after",
    *(f"d_{name}" for name in INPUTS),
)  # fmt: skip
# The fields of a `Call`, in the order of `call.h`.
SIZES = ("batch", "length", "heads", "features", "values")
VIEWS = INPUTS[:3]
POINTERS = (*FORWARD[3:], *BACKWARD[7:])


def call(
    function: Any, fields: type[ctypes.Structure], tensors: Mapping[str, Any], **others: Any
) -> None:
    """Call a compiled function of queries, keys and values.

    Args:
        function: The function, which takes a pointer to a structure.
        fields: The structure.
        tensors: The tensor of each field; None is a null pointer. Those whose strides `call.h`
            forbids are copied.
        others: The fields that are neither tensors nor `SIZES`.
    """
    # Named, so that no copy is freed before the call returns.
    laid: dict[str, Any] = {
        name: x if x is None or (name in VIEWS and x.stride(-1) == 1) else x.contiguous()
        for name, x in tensors.items()
    }
    values: dict[str, Any] = dict(zip(SIZES, (*laid["q"].shape, laid["v"].shape[-1]), strict=True))
    for name, x in laid.items():
        values[name] = View.of(x) if name in VIEWS else None if x is None else x.data_ptr()
    function(ctypes.byref(fields(**values, **others)))


class View(ctypes.Structure):
    """Queries, keys or values, [b, t, h, c or m]: see `call.h`."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("batch", ctypes.c_int64), ("position", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )  # fmt: skip

    @classmethod
    def of(cls, x: Tensor) -> "View":
        """Return the view of a tensor that is contiguous within a head."""
        assert x.stride(-1) == 1 or x.shape[-1] == 1 or not x.numel()
        return cls(x.data_ptr(), *x.stride()[:3])


class Call(ctypes.Structure):
    """What the kernels of causal linear attention are given."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in SIZES),
        *((name, View) for name in VIEWS),
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("eps", ctypes.c_double), ("elu", ctypes.c_bool),
    )  # fmt: skip
