"""DeltaNet and gated DeltaNet: a memory that corrects what it recalls. See `ops.delta`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_transformers.attention.fast_weights import FastWeightAttention, KeyGate
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.ops.delta import delta, delta_step


class DeltaAttention(FastWeightAttention):
    """S_i = (I - b_i k_i k_i^T) S_(i-1) + b_i k_i v_i^T with b_i = sigmoid(gate(k_i)).

    Queries and keys pass silu and are scaled to length 1 (Yang et al., 2024). Costs
    O(t (l + d) d) for t positions in chunks of l; the state is d by d a head.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        chunk_size: The positions of a chunk, l. Only speed depends on it.
    """

    over_sequence = delta
    over_position = delta_step

    @ranged
    def __init__(self, num_heads: int, head_dim: int, *, chunk_size: Size = 64):
        super().__init__(num_heads, head_dim)
        self.strength = KeyGate(num_heads, head_dim, 1, bias=0.0)
        self.chunk_size = chunk_size

    def prepare(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        strength = self.strength(k).sigmoid()
        q, k = (F.normalize(F.silu(x), dim=-1) for x in (q, k))
        return q, k, v, strength, torch.zeros_like(strength)


class GatedDeltaAttention(DeltaAttention):
    """The delta rule with a decay: S_(i-1) is first multiplied by a_i = sigmoid(gate(k_i)).

    See Yang, Kautz and Hatamizadeh (2025).
    """

    def __init__(self, num_heads: int, head_dim: int, *, chunk_size: int = 64):
        super().__init__(num_heads, head_dim, chunk_size=chunk_size)
        # The initial decay forgets about 1/50 a step.
        self.decay = KeyGate(num_heads, head_dim, 1, bias=4.0)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        *inputs, _ = super().prepare(q, k, v)
        return *inputs, F.logsigmoid(self.decay(k))
