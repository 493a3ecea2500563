"""The kernels of other libraries, where they are installed, behind the signature of ours.

They compute weighted sums of values without the normaliser and, the first, without a state; that is
added here.
"""

from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.precision import widened, without_autocast
from linear_transformers.ops.recurrent import LinearState, empty_state


def fast_transformers(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    *,
    eps: float,
    state: LinearState | None = None,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """`parallel` with pytorch-fast-transformers' causal product (Katharopoulos et al., 2020)."""
    from fast_transformers.causal_product import causal_dot_product  # pyright: ignore[reportMissingImports]

    dtype = v.dtype
    q, k, v = widened(q, k, v)
    with without_autocast(v):
        sums = causal_dot_product(*(x.transpose(1, 2).contiguous() for x in (q, k, v)))
        sums, kv_sum = sums.transpose(1, 2), torch.einsum("bshc,bshm->bhcm", k, v)
        if state is not None:
            sums = sums + torch.einsum("bthc,bhcm->bthm", q, state.kv_sum)
            kv_sum = kv_sum + state.kv_sum
        outputs, k_sum = _normalized(q, k, sums, eps, state)
    return outputs.to(dtype), LinearState(kv_sum, k_sum)


def fla(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    *,
    eps: float,
    state: LinearState | None = None,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """`parallel` with flash-linear-attention's chunked kernel (Yang and Zhang, 2024)."""
    from fla.ops.linear_attn import chunk_linear_attn  # pyright: ignore[reportMissingImports]

    dtype = v.dtype
    if state is None:
        state = empty_state(
            len(q), q.shape[2], q.shape[3], v.shape[3], device=v.device, dtype=v.dtype
        )
    with without_autocast(v):
        sums, kv_sum = chunk_linear_attn(
            q.to(dtype), k.to(dtype), v, scale=1.0, initial_state=state.kv_sum,
            output_final_state=True, normalize=False,
        )  # fmt: skip
        q, k, sums = widened(q, k, sums)
        outputs, k_sum = _normalized(q, k, sums, eps, state)
    return outputs.to(dtype), LinearState(kv_sum, k_sum)


def no_fast_transformers(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why its kernel cannot run; None where it can."""
    if find_spec("fast_transformers") is None:
        return "pytorch-fast-transformers is not installed (uv sync --extra fast-transformers)"
    return "it has no float64" if dtype == torch.float64 else None


def no_fla(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why its kernel cannot run; None where it can."""
    if find_spec("fla") is None:
        return "flash-linear-attention is not installed (uv sync --extra fla)"
    if device.type != "cuda":
        return f"it runs on GPUs, and the tensors are on {device}"
    return "it has no float64" if dtype == torch.float64 else None


def _normalized(
    q: Tensor, k: Tensor, sums: Tensor, eps: float, state: LinearState | None
) -> tuple[Tensor, Tensor]:
    """Outputs, and the sum of keys at the end."""
    k_sums = k.cumsum(1)
    if state is not None:
        k_sums = k_sums + state.k_sum.unsqueeze(1)
    total = torch.einsum("bthc,bthc->bth", q, k_sums)
    return normalize(sums, total, eps=eps), k_sums[:, -1]
