"""Linear attention without a causal mask: global sums, read by any number of queries.

Eq. 5-6 of Katharopoulos et al. (2020). The sums over keys are a memory of constant size, computed
once, for bidirectional self-attention and for cross-attention alike.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.precision import widened, without_autocast
from linear_transformers.ops.recurrent import LinearState


def summarize(
    k: Float[Tensor, "b s h c"],
    v: Float[Tensor, "b s h m"],
    lengths: sh.Lengths | None = None,
    *,
    rotated: Float[Tensor, "b s h c"] | None = None,
) -> LinearState:
    """Return the sums over all keys, or over each sequence's first `lengths`.

    Args:
        k: The features of the keys.
        v: The values.
        lengths: The numbers of keys that are no padding; None is all.
        rotated: The rotated features, which the sums with values are of; None is `k`.
    """
    given = widened(k, v) if rotated is None else widened(k, v, rotated)
    if lengths is not None:
        # Keys and values: padding may hold NaN, and 0 times NaN is NaN.
        mask = valid(lengths, k.shape[1])[..., None, None]
        given = tuple(x.where(mask, 0) for x in given)
    k, v = given[:2]
    numerator = k if rotated is None else given[2]
    with without_autocast(v):
        return LinearState(torch.einsum("bshc,bshm->bhcm", numerator, v), k.sum(1))


def read(
    q: Float[Tensor, "b t h c"],
    memory: LinearState,
    *,
    eps: float,
    rotated: Float[Tensor, "b t h c"] | None = None,
) -> Float[Tensor, "b t h m"]:
    """Return the output of each query to a memory, in the type of sums over the queries.

    Args:
        q: The features of the queries.
        memory: The sums over keys and values.
        eps: See `normalize`.
        rotated: The rotated features, where `memory.kv_sum` is of rotated keys; the denominator
            has none.
    """
    q, numerator = widened(q, q if rotated is None else rotated)
    memory = memory.to(q.dtype)
    with without_autocast(q):
        weighted_sum = torch.einsum("bthc,bhcm->bthm", numerator, memory.kv_sum)
        total_weight = torch.einsum("bthc,bhc->bth", q, memory.k_sum)
        return normalize(weighted_sum, total_weight, eps=eps)


def check_lengths(lengths: Tensor, batch: int, size: int) -> None:
    """Refuse lengths that are not those of padded sequences.

    Args:
        lengths: The length of each. On a GPU they are not looked at, which would wait, nor are
            those that are compiled or transformed.
        batch: The number of sequences.
        size: The number of positions, with padding.

    Raises:
        ValueError: There is not one whole number for each, or one is not within 1 to `size`.
    """
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ValueError(
            f"Lengths {list(lengths.shape)} of {lengths.dtype} were given for {batch} sequences. "
            "Give one whole number for each."
        )
    looked_at = not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
    if looked_at and lengths.device.type == "cpu":
        for length in lengths.aminmax() if batch else ():
            if not 0 < length <= size:
                raise ValueError(
                    f"A length of {length} was given; the sequences have {size} positions, with "
                    "padding. Give at least 1, and no more than there are."
                )


def valid(lengths: sh.Lengths, size: int) -> Bool[Tensor, "b size"]:
    """Return which positions are not padding."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)
