"""The arguments of the kernels in C++: `call.h` in ctypes."""

import ctypes
from collections.abc import Sequence
from typing import Any

from torch import Tensor

INPUTS = ("q", "k", "v", "kv_sum", "k_sum")
FORWARD = (*INPUTS, "out", "weight", "kv_sum_after", "k_sum_after")
BACKWARD = (
    *INPUTS, "out", "weight", "d_out", "d_kv_sum_after", "d_k_sum_after",
    "d_q", "d_k", "d_v", "d_kv_sum", "d_k_sum",
)  # fmt: skip
# The fields of a `Call`, in the order of `call.h`.
SIZES = ("batch", "length", "heads", "features", "values")
VIEWS = INPUTS[:3]
POINTERS = (*FORWARD[3:], *BACKWARD[7:])


def call(function: Any, names: Sequence[str], tensors: Sequence[Any], **others: Any) -> Any:
    """Call a compiled function of causal linear attention and return what it returns.

    Args:
        function: A function that takes a `Call`.
        names: The field of each tensor: `FORWARD` or `BACKWARD`.
        tensors: The inputs, then the results. Inputs whose strides `call.h` forbids are copied;
            None is a null pointer.
        others: The fields that are not tensors.
    """
    q, k, v, *dense = tensors
    # Named, so that no copy is freed before the call returns.
    views = [x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v)]
    dense = [None if x is None else x.contiguous() for x in dense]
    fields = [View.of(x) for x in views]
    fields += [None if x is None else x.data_ptr() for x in dense]
    sizes = zip(SIZES, (*q.shape, v.shape[-1]), strict=True)
    by_name = zip(names, fields, strict=True)
    return function(ctypes.byref(_Call(**dict(sizes), **dict(by_name), **others)))


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


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in SIZES),
        *((name, View) for name in VIEWS),
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("eps", ctypes.c_double), ("elu", ctypes.c_bool),
    )  # fmt: skip
