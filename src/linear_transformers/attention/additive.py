"""Additive attention (Bahdanau, Cho and Bengio, 2015), with a key-value cache."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from linear_transformers import shapes as sh
from linear_transformers.attention.cache import CachedAttention
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.kernels.operator import is_transformed
from linear_transformers.ops.precision import widened, without_autocast


class AdditiveAttention(CachedAttention):
    """V'_i = sum_{j<=i} exp(w . tanh(q_i + k_j)) v_j / sum_{j<=i} exp(w . tanh(q_i + k_j))

    Costs O(t^2 d) for t positions, as softmax attention does, but with a tanh for each pair and
    feature instead of a matrix product. w is learned, one for each head.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        block_size: The number of queries whose scores are computed at a time. Only memory depends
            on it.

    Raises:
        ValueError: `block_size` is below 1.
    """

    @ranged
    def __init__(self, num_heads: int, head_dim: int, *, block_size: Size = 64):
        super().__init__(num_heads, head_dim)
        self.weight = nn.Parameter(torch.randn(num_heads, head_dim) * head_dim**-0.5)
        self.block_size = block_size

    def attend(self, q: sh.Queries, keys: Tensor, values: Tensor, start: int) -> sh.Outputs:
        outputs = []
        for i in range(0, q.shape[1], self.block_size):
            part = q[:, i : i + self.block_size]
            end = start + i + part.shape[1]
            args = (part, keys[:, :, :end], values[:, :, :end], self.weight)
            # The tanh of every pair takes too much memory to keep for the backward pass.
            if torch.is_grad_enabled() and not is_transformed(*args):  # which know no checkpoints
                outputs.append(checkpoint(_additive, *args, use_reentrant=False))
            else:
                outputs.append(_additive(*args))
        return torch.cat(outputs, dim=1)


def _additive(q: Tensor, keys: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    """Attend from queries [b, t, h, d] at the last t of the keys' positions."""
    dtype = q.dtype
    (q,) = widened(q.transpose(1, 2))
    keys, values, weight = (x.to(q.dtype) for x in (keys, values, weight))
    with without_autocast(values):
        pairs = (q.unsqueeze(3) + keys.unsqueeze(2)).tanh()
        scores = torch.einsum("bhtsd,hd->bhts", pairs, weight)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(future.triu(1 + keys.shape[2] - q.shape[2]), -torch.inf)
        return (scores.softmax(-1) @ values).transpose(1, 2).to(dtype)
