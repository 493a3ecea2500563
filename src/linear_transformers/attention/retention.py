"""Retention (Sun et al., 2023): linear attention with a fixed decay for each head."""

import torch
from torch import Tensor

from linear_transformers.attention.fast_weights import FastWeightAttention
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.ops.decayed import decayed, decayed_step


class RetentionAttention(FastWeightAttention):
    """S_i = a S_(i-1) + k_i v_i^T with a = 1 - 2^(-5 - h) for head h = 0, 1, ...

    Costs O(t (l + d) d) for t positions in chunks of l; the state is d by d a head.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        chunk_size: The positions of a chunk, l. Only speed depends on it.
    """

    over_sequence = decayed
    over_position = decayed_step

    @ranged
    def __init__(self, num_heads: int, head_dim: int, *, chunk_size: Size = 64):
        super().__init__(num_heads, head_dim)
        self.chunk_size = chunk_size

    def prepare(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        head = torch.arange(self.num_heads, device=q.device, dtype=q.dtype)
        log_decay = torch.log1p(-torch.exp2(-5 - head)).unsqueeze(-1).expand(*q.shape[:-1], 1)
        return q, k * self.head_dim**-0.5, v, log_decay
