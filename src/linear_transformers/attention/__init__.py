"""Attention mechanisms. One backend a file, one class, two forms: `forward` and `step`."""

from linear_transformers.attention.base import AttentionFactory, CausalAttention
from linear_transformers.attention.linear import LinearAttention
from linear_transformers.attention.softmax import KeyValueCache, SoftmaxAttention

__all__ = [
    "AttentionFactory",
    "CausalAttention",
    "KeyValueCache",
    "LinearAttention",
    "SoftmaxAttention",
]
