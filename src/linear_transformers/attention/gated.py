"""Gated linear attention (Yang et al., 2024), whose decay depends on the input."""

import torch.nn.functional as F
from torch import Tensor

from linear_transformers.attention.fast_weights import FastWeightAttention, KeyGate
from linear_transformers.ops.decayed import decayed, decayed_step

# The fastest decay, in logs: a chunk of 16 positions then stays within float32.
FASTEST = -5.0


class GatedLinearAttention(FastWeightAttention):
    """S_i = diag(a_i) S_(i-1) + k_i v_i^T with a_i = sigmoid(gate(k_i))^(1/16), one per feature.

    Costs O(t (16 + d) d) for t positions; the state is d by d a head.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
    """

    over_sequence = decayed
    over_position = decayed_step
    chunk_size: int = 16

    def __init__(self, num_heads: int, head_dim: int):
        super().__init__(num_heads, head_dim)
        self.gate = KeyGate(num_heads, head_dim, head_dim, bias=0.0)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        log_decay = (F.logsigmoid(self.gate(k)) / 16).clamp(min=FASTEST)
        return q, k * self.head_dim**-0.5, v, log_decay
