"""Locality-sensitive hashing, and the bidirectional form of attention within buckets."""

from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from linear_transformers import shapes as sh
from linear_transformers.attention.base import BidirectionalAttention
from linear_transformers.ops import lsh
from linear_transformers.ops.lengths import valid


class HashPlanes(nn.Module):
    """Random rotations that hash similar vectors into one bucket, one for each head and round.

    The hash is that of Andoni et al. (2015), as in Reformer. The planes are a buffer: saved with
    the weights, the same in every `forward` and `step`.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of a vector, d.
        num_rounds: The number of hashing rounds, a.
        num_buckets: The number of buckets of a round, which is even.

    Raises:
        ValueError: The number of buckets is odd.
    """

    planes: Tensor

    def __init__(self, num_heads: int, head_dim: int, num_rounds: int, num_buckets: int):
        super().__init__()
        if num_buckets % 2:
            raise ValueError(
                f"num_buckets={num_buckets} was asked for; it must be even: each direction of a "
                "rotation and its opposite is one."
            )
        self.num_buckets = num_buckets
        shape = (num_heads, num_rounds, head_dim, num_buckets // 2)
        self.register_buffer("planes", torch.randn(shape))

    def forward(self, q: sh.Queries) -> Int[Tensor, "b h a t"]:
        """Return the bucket of each vector in each round."""
        return lsh.buckets_of(q, self.planes)


class BucketAttention(BidirectionalAttention):
    """Attention within buckets, whose bidirectional form is Reformer's: see `lsh.chunked`."""

    shares_keys: ClassVar[bool] = True
    hash: HashPlanes
    chunk: int

    def bidirectional(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, lengths: sh.Lengths | None = None
    ) -> sh.Outputs:
        self.check_memory(q, v, lengths)
        mask = None if lengths is None else valid(lengths, q.shape[1])
        return lsh.chunked(q, v, self.hash(q), chunk=self.chunk, causal=False, mask=mask)
