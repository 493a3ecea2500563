"""Softmax attention (Vaswani et al., 2017), on PyTorch's fused kernels, with a key-value cache."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.attention.base import CrossAttention
from linear_transformers.attention.cache import CachedAttention
from linear_transformers.attention.states import SEQUENCE, check_past
from linear_transformers.config.ranges import Positive, Size, ranged
from linear_transformers.ops.lengths import valid
from linear_transformers.ops.precision import widened, without_autocast


class KeyValueMemory(NamedTuple):
    """All keys and values, and which of them are not padding."""

    keys: Float[Tensor, "b k s d"]
    values: Float[Tensor, "b k s m"]
    mask: Bool[Tensor, "b 1 1 s"] | None


class SoftmaxAttention(CachedAttention, CrossAttention[KeyValueMemory]):
    """V'_i = sum_{j<=i} exp(scale q_i . k_j) v_j / sum_{j<=i} exp(scale q_i . k_j)

    Costs O(t^2 d) for t positions; the cache holds t keys and values, and a step reads it all.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        scale: The factor of the dot product. None is 1/sqrt(d), the scaled dot product; 1.0 is
            the multiplicative attention of Luong et al. (2015).
        num_key_heads: The number of heads of keys and values, a divisor of h: each is shared by
            the queries of a group of heads (Ainslie et al., 2023). None is h.

    Raises:
        ValueError: The heads do not divide into equal groups.
    """

    kernel = "sdpa"

    @ranged
    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        scale: Positive | None = None,
        num_key_heads: Size | None = None,
    ):
        super().__init__(num_heads, head_dim, num_key_heads=num_key_heads)
        self.scale = scale

    def attend(self, q: sh.Queries, keys: Tensor, values: Tensor, start: int) -> sh.Outputs:
        count = q.shape[1]
        if start == 0:
            return attended(q, keys, values, scale=self.scale, is_causal=True)
        visible = None  # a single position sees all there is
        if count > 1:
            visible = torch.ones(count, start + count, dtype=torch.bool, device=q.device)
            visible = visible.tril(start)
        return attended(q, keys, values, scale=self.scale, attn_mask=visible)

    def summarize(
        self, k: sh.Keys, v: sh.Values, lengths: sh.Lengths | None = None
    ) -> KeyValueMemory:
        self.check_memory(k, v, lengths)
        mask = None
        if lengths is not None:
            mask = valid(lengths, k.shape[1])
            k, v = (x.where(mask[..., None, None], 0) for x in (k, v))  # 0 times NaN is NaN
            mask = mask[:, None, None]
        return KeyValueMemory(k.transpose(1, 2), v.transpose(1, 2), mask)

    def read(self, q: sh.Queries, memory: KeyValueMemory) -> sh.Outputs:
        self.check_heads(SEQUENCE, q)
        heads, length, width = self.num_key_heads, memory.keys.shape[2], self.head_dim
        check_past(q, memory.keys, heads, length, width)
        return attended(q, memory.keys, memory.values, scale=self.scale, attn_mask=memory.mask)


def attended(q: sh.Queries, keys: Tensor, values: Tensor, **options: Any) -> sh.Outputs:
    """Return the outputs of queries to keys and values [b, k, s, d or m], in the queries' type.

    Args:
        q: The queries.
        keys: The keys.
        values: The values.
        options: See PyTorch's `scaled_dot_product_attention`.
    """
    dtype = q.dtype
    q, values = q.transpose(1, 2).to(keys.dtype), values.to(keys.dtype)
    if torch.is_grad_enabled() and q.device.type == "cpu":
        # In bfloat16 PyTorch's gradient takes up to seven times as long there.
        q, keys, values = widened(q, keys, values)
    with without_autocast(values):
        grouped = q.shape[1] != keys.shape[1]
        out = F.scaled_dot_product_attention(q, keys, values, enable_gqa=grouped, **options)
    return out.to(dtype).transpose(1, 2)
