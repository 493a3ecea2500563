"""Random rotations that put alike vectors into one bucket, and what attention within buckets
shares, whichever its causal form is."""

from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from linear_transformers.attention.base import BidirectionalAttention
from linear_transformers.ops import lsh
from linear_transformers.ops.bidirectional import valid
from linear_transformers.shapes import Keys, Lengths, Outputs, Queries, Values


class HashPlanes(nn.Module):
    """Andoni et al. (2015), as in Reformer: for each head and round a rotation of its own.

    The planes are a buffer: saved with the weights, the same in every `forward` and `step`.

    Args:
        num_heads: h.
        head_dim: d.
        num_rounds: r.
        num_buckets: An even number.

    Raises:
        ValueError: No rounds, or an odd number of buckets.
    """

    planes: Tensor

    def __init__(self, num_heads: int, head_dim: int, num_rounds: int, num_buckets: int):
        super().__init__()
        if num_rounds < 1:
            raise ValueError(f"num_rounds={num_rounds} was asked for; it must be at least 1.")
        if num_buckets < 2 or num_buckets % 2:
            raise ValueError(
                f"num_buckets={num_buckets} was asked for; it must be even: each direction of a "
                "rotation and its opposite is one."
            )
        self.num_buckets = num_buckets
        shape = (num_heads, num_rounds, head_dim, num_buckets // 2)
        self.register_buffer("planes", torch.randn(shape))

    def forward(self, q: Queries) -> Int[Tensor, "b h r t"]:
        """The bucket of each vector in each round."""
        return lsh.buckets_of(q, self.planes)


class BucketAttention(BidirectionalAttention):
    """Where nothing is to be hidden, every LSH attention is Reformer's: sorted by bucket, cut into
    chunks, each seeing itself and the one before. Queries are keys."""

    shares_keys: ClassVar[bool] = True
    hash: HashPlanes
    chunk: int

    def bidirectional(
        self, q: Queries, k: Keys, v: Values, lengths: Lengths | None = None
    ) -> Outputs:
        there = None if lengths is None else valid(lengths, q.shape[1])
        return lsh.chunked(q, v, self.hash(q), chunk=self.chunk, causal=False, there=there)
