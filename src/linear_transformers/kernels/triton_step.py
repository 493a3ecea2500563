# pyright: reportArgumentType=false, reportCallIssue=false
"""One position of causal linear attention in Triton, the state changed in place: eqs. 16 to 20.

A program takes a head of a sequence: it reads the state once, adds phi(k) v^T and phi(k), reads
the output off it and writes it back. Nothing else moves through memory that grows with the state.
On a CPU this runs in Triton's interpreter, as `triton_linear` does.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from linear_transformers.kernels.operator import Map, check_state, fuses, refuse
from linear_transformers.kernels.triton_linear import elu_features, unavailable
from linear_transformers.ops.precision import mapped
from linear_transformers.ops.recurrent import LinearState

HELD = 8192  # numbers of the state that a program has in registers at a time
PER_WARP = 1024  # numbers of them per warp


def triton_step(
    q: Float[Tensor, "b h d"],
    k: Float[Tensor, "b h d"],
    v: Float[Tensor, "b h m"],
    state: LinearState,
    *,
    eps: float,
    phi: Map | None = None,
) -> tuple[Float[Tensor, "b h m"], LinearState]:
    """Compute `recurrent.step` in place: the given state becomes the state after this position.

    Args:
        q: The new query; without `phi`, its features.
        k: The new key; without `phi`, its features.
        v: The new value.
        state: The past, dense, in float32. Changed in place.
        eps: See `normalize`.
        phi: The feature map. Fused where it is elu + 1.

    Returns:
        The output at this position in the type of `v`, and the state that was given.

    Raises:
        ValueError: The tensors are on another device, or in float64; or the state is that of
            other sequences or heads.
    """
    refuse("triton", unavailable(v.device, v.dtype))
    elu = fuses(phi)
    if not elu:
        q, k = mapped(phi, q, k)
    check_state(state, q.unsqueeze(1), v.unsqueeze(1))
    return _operator(q, k, v, *state, eps, elu), state


@torch.library.custom_op("linear_transformers::triton_step", mutates_args=("kv_sum", "k_sum"))
def _operator(
    q: Tensor, k: Tensor, v: Tensor, kv_sum: Tensor, k_sum: Tensor, eps: float, elu: bool
) -> Tensor:
    assert all(sums.is_contiguous() for sums in (kv_sum, k_sum))
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    batch, heads, c = q.shape
    m = v.shape[-1]
    out = _fake(q, k, v, kv_sum, k_sum, eps, elu)
    bc = triton.next_power_of_2(c)
    bm = min(triton.next_power_of_2(m), max(1, HELD // bc))
    warps = min(8, triton.next_power_of_2(triton.cdiv(bc * bm, PER_WARP)))
    with torch.cuda.device_of(v):
        _step[(batch * heads,)](
            q, k, v, kv_sum, k_sum, out, *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
            heads, eps, C=c, M=m, BC=bc, BM=bm, ELU=elu, num_warps=warps,
        )  # fmt: skip
    return out


@_operator.register_fake
def _fake(
    q: Tensor, k: Tensor, v: Tensor, kv_sum: Tensor, k_sum: Tensor, eps: float, elu: bool
) -> Tensor:
    return v.new_empty(v.shape)


@triton.jit
@no_type_check
def _features(data, x, width, ELU: tl.constexpr):
    """Load a vector and map it, in float32; features of padding are zero."""
    row = tl.load(data + x, mask=x < width, other=0.0).to(tl.float32)
    if ELU:
        row = tl.where(x < width, elu_features(row), 0.0)
    return row


@triton.jit
@no_type_check
def _step(
    q, k, v, kv_sum, k_sum, out, q_b, q_h, k_b, k_h, v_b, v_h, heads, eps,
    C: tl.constexpr, M: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, ELU: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    batch, head = place // heads, place % heads
    x = tl.arange(0, BC)
    query = _features(q + batch * q_b + head * q_h, x, C, ELU)
    key = _features(k + batch * k_b + head * k_h, x, C, ELU)
    total = tl.load(k_sum + place * C + x, mask=x < C, other=0.0) + key
    tl.store(k_sum + place * C + x, total, mask=x < C)
    weight = tl.sum(query * total, 0) + eps
    for block in range(0, M, BM):
        y = block + tl.arange(0, BM)
        value = tl.load(v + batch * v_b + head * v_h + y, mask=y < M, other=0.0).to(tl.float32)
        at = kv_sum + place * C * M + x[:, None] * M + y[None, :]
        inside = (x[:, None] < C) & (y[None, :] < M)
        sums = tl.load(at, mask=inside, other=0.0) + key[:, None] * value[None, :]
        tl.store(at, sums, mask=inside)
        tl.store(out + place * M + y, tl.sum(query[:, None] * sums, 0) / weight, mask=y < M)
