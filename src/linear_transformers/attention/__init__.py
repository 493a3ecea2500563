"""Attention mechanisms. One mechanism a file, one class, two forms: `forward` and `step`."""

from linear_transformers.attention.additive import AdditiveAttention
from linear_transformers.attention.base import (
    AttentionFactory,
    BidirectionalAttention,
    CausalAttention,
    CrossAttention,
)
from linear_transformers.attention.cache import KeyValueCache
from linear_transformers.attention.key_gated import (
    DeltaAttention,
    GatedDeltaAttention,
    GatedLinearAttention,
    RetentionAttention,
)
from linear_transformers.attention.linear import LinearAttention
from linear_transformers.attention.lsh import LshAttention
from linear_transformers.attention.reformer import ReformerAttention
from linear_transformers.attention.softmax import SoftmaxAttention
from linear_transformers.attention.sparse import SparseAttention
from linear_transformers.attention.window import WindowAttention

__all__ = [
    "AdditiveAttention",
    "AttentionFactory",
    "BidirectionalAttention",
    "CausalAttention",
    "CrossAttention",
    "DeltaAttention",
    "GatedDeltaAttention",
    "GatedLinearAttention",
    "KeyValueCache",
    "LinearAttention",
    "LshAttention",
    "ReformerAttention",
    "RetentionAttention",
    "SoftmaxAttention",
    "SparseAttention",
    "WindowAttention",
]
