"""Rotary positions (Su et al., 2021, "RoFormer", eq. 34), and linear attention with them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.ops.decayed import decayed
from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.precision import (
    accumulation_dtype,
    exact_dtype,
    widened,
    without_autocast,
)
from linear_transformers.ops.recurrent import LinearState

BASE = 10_000.0


@dataclass(frozen=True)
class Rotation:
    """A rotation of pairs of features by their position, so that dot products tell distances.

    Feature i is paired with feature i + c/2, and turned by position * 10000^(-2 i / c).

    Attributes:
        positions: The position of each vector, [t], or of one, [1].
    """

    positions: Int[Tensor, " t"]

    def __call__(self, x: Float[Tensor, "b *t h c"]) -> Float[Tensor, "b *t h c"]:
        """Rotate vectors [b, t, h, c], or those of one position, [b, h, c].

        Raises:
            ValueError: Their width is odd.
        """
        width = x.shape[-1]
        if width % 2:
            raise ValueError(
                f"rotary positions turn pairs of features, and there are {width} of a head. "
                "Use an even width, or rotary=false."
            )
        dtype, exact = accumulation_dtype(x.dtype), exact_dtype(x.device)
        places = torch.arange(0, width, 2, device=x.device, dtype=exact)
        # In float32 the angle of a position in the millions would be off by a tenth.
        angle = self.positions.to(exact).unsqueeze(-1) * BASE ** (-places / width)
        angle = angle.unsqueeze(-2) if x.ndim == 4 else angle
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        a, b = x.to(dtype).chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def rotated_linear(
    q: Float[Tensor, "b t h c"],
    k: Float[Tensor, "b t h c"],
    v: Float[Tensor, "b t h m"],
    rotation: Rotation,
    *,
    eps: float,
    state: LinearState | None = None,
) -> tuple[Float[Tensor, "b t h m"], LinearState]:
    """Compute causal linear attention with rotated features in the numerator: RoFormer, eq. 19.

    The denominator has the features as they are: its weights stay positive.

    Args:
        q: The features of the queries.
        k: The features of the keys.
        v: The values.
        rotation: The rotation of the positions.
        eps: See `normalize`.
        state: The past before the first position, empty if absent. Left unmodified.

    Returns:
        The outputs in the type of `v`, and the state after the last position.
    """
    dtype = v.dtype
    q, k, v = widened(q, k, v)
    with without_autocast(v):
        undecayed = q.new_zeros(*q.shape[:-1], 1)
        kv_sum = None if state is None else state.kv_sum
        weighted_sum, kv_sum = decayed(
            rotation(q), rotation(k), v, undecayed, state=kv_sum, chunk_size=32
        )
        k_sums = k.cumsum(1)
        if state is not None:
            k_sums = k_sums + state.k_sum.to(k.dtype).unsqueeze(1)
        outputs = normalize(weighted_sum, (q * k_sums).sum(-1), eps=eps)
    return outputs.to(dtype), LinearState(kv_sum, k_sums[:, -1].clone())
