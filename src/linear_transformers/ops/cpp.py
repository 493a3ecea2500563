"""Causal linear attention in C++ for CPUs: `cpp_linear.cpp`, compiled when it is first wanted.

The same function as `chunkwise`, with the paper's feature map fused where it is asked for.
"""

import ctypes
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.compiling import compiled
from linear_transformers.ops.precision import widened, without_autocast
from linear_transformers.ops.recurrent import LinearState, empty_state

SOURCE = "cpp_linear.cpp"
NAMES = {torch.float32: "float32", torch.float64: "float64"}


def cpp(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    *,
    eps: float,
    state: LinearState | None = None,
    elu: bool = False,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """The same function as `parallel`, in O(t) time, keeping one number a position and head.

    Args:
        q: Features of the queries, or with `elu` the queries themselves.
        k: Features of the keys, or with `elu` the keys themselves.
        v: Values.
        eps: See `normalize`.
        state: The past before the first position; empty when absent. Left unmodified.
        elu: Whether phi(x) = elu(x) + 1 is still to be applied to queries and keys.

    Returns:
        The outputs in the type of `v`, and the state after the last position.

    Raises:
        ValueError: The kernel cannot be compiled here.
    """
    batch, _, num_heads, feature_dim = q.shape
    if state is None:
        state = empty_state(
            batch, num_heads, feature_dim, v.shape[-1], device=v.device, dtype=v.dtype
        )
    dtype = v.dtype
    q, k, v = widened(q, k, v)
    with without_autocast(v):
        outputs, _, kv_sum, k_sum = forward(q, k, v, *state, eps, elu)
    return outputs.to(dtype), LinearState(kv_sum, k_sum)


@torch.compiler.assume_constant_result
def unavailable() -> str | None:
    """Why the kernel cannot run here; None where it can. Compiles it, at the first call ever."""
    library = compiled(SOURCE)
    return library if isinstance(library, str) else None


class _Sizes(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("batch", "length", "heads", "features", "values")
    )


class _View(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("batch", ctypes.c_int64), ("position", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )  # fmt: skip


@torch.library.custom_op("linear_transformers::cpp_causal", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, kv_sum: Tensor, k_sum: Tensor, eps: float, elu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, the sums of weights that they were divided by, and both sums of the state."""
    outputs = _outputs(q, k, v, kv_sum, k_sum, eps, elu)
    _call("forward", (q, k, v), (kv_sum, k_sum, *outputs), ctypes.c_double(eps), elu)
    return outputs


@forward.register_fake
def _outputs(
    q: Tensor, k: Tensor, v: Tensor, kv_sum: Tensor, k_sum: Tensor, eps: float, elu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _like(v), v.new_empty(q.shape[:3]), _like(kv_sum), _like(k_sum)


@torch.library.custom_op("linear_transformers::cpp_causal_backward", mutates_args=())
def backward(given: Sequence[Tensor], elu: bool) -> list[Tensor]:
    """The gradients of the five inputs, given these, both outputs that are kept, and the
    gradients of the outputs and of the state after them."""
    gradients = _gradients(given, elu)
    _call("backward", given[:3], (*given[3:], *gradients), elu)
    return gradients


@backward.register_fake
def _gradients(given: Sequence[Tensor], elu: bool) -> list[Tensor]:
    return [_like(x) for x in given[:5]]


def _like(x: Tensor) -> Tensor:
    """Room for as many numbers, without gaps."""
    return x.new_empty(x.shape)


def _keep(ctx, inputs, output) -> None:
    *tensors, _, ctx.elu = inputs
    ctx.save_for_backward(*tensors, *output[:2])


def _differentiate(ctx, d_outputs, d_weight, d_kv_sum, d_k_sum):
    given = [*ctx.saved_tensors, d_outputs, d_kv_sum, d_k_sum]
    return *backward(given, ctx.elu), None, None


forward.register_autograd(_differentiate, setup_context=_keep)


def _call(name: str, views: Sequence[Tensor], dense: Sequence[Tensor], *numbers) -> None:
    """Give a function of the library its tensors; those of the results are dense already."""
    library = compiled(SOURCE)
    if isinstance(library, str):
        raise ValueError(f"The C++ kernel cannot run here: {library}.")
    q, _, v = views
    if v.device.type != "cpu":
        raise ValueError(f"kernel=cpp runs on CPUs, and these tensors are on {v.device}.")
    # Named until the call is over: what is copied here must not be freed before.
    views = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in views)
    dense = tuple(x.contiguous() for x in dense)
    getattr(library, f"{name}_{NAMES[v.dtype]}")(
        _Sizes(*q.shape, v.shape[-1]),
        *(_View(x.data_ptr(), *x.stride()[:3]) for x in views),
        *(ctypes.c_void_p(x.data_ptr()) for x in dense),
        *numbers,
    )
