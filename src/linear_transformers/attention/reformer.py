"""Reformer's LSH attention as it was published (Kitaev et al., 2020). See `ops.lsh`."""

from typing import ClassVar

from linear_transformers.attention.base import check_equal_lengths
from linear_transformers.attention.cache import CachedAttention, KeyValueCache
from linear_transformers.attention.hashing import BucketAttention, HashPlanes
from linear_transformers.ops import lsh
from linear_transformers.shapes import (
    Key,
    Keys,
    Output,
    Outputs,
    Queries,
    Query,
    Value,
    Values,
)


class ReformerAttention(BucketAttention, CachedAttention):
    """Softmax over the query's own bucket, in its chunk of the sorted sequence and the one before.

    Not exactly causal: a mask hides later positions, but they move the cuts between chunks and
    so change what earlier ones see. Bits per dimension from it are no likelihood, and `step`,
    which recomputes all positions so far as the paper did, gives something else than `forward`.
    It is here to reproduce the paper's table, and for encoders; `model=lsh4` is the honest form.

    Costs O(t r chunk d) for t positions, and as much for each step.

    Args:
        num_heads: h.
        head_dim: d, and m: values are as wide as queries.
        num_rounds: r: hashings whose attentions are added up.
        num_buckets: Of each hashing, an even number. The paper's images: 64.
        chunk: Positions a chunk. The paper's: 29 for MNIST, 37 for CIFAR-10.

    Raises:
        ValueError: A number that is too small, or odd buckets.
    """

    kernel = "sorted chunks"
    exactly_causal: ClassVar[bool] = False

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        num_rounds: int = 4,
        num_buckets: int = 16,
        chunk: int = 32,
    ):
        super().__init__(num_heads, head_dim)
        if chunk < 1:
            raise ValueError(f"chunk={chunk} was asked for; it must be at least 1.")
        self.hash = HashPlanes(num_heads, head_dim, num_rounds, num_buckets)
        self.chunk = chunk

    def forward(self, q: Queries, k: Keys, v: Values) -> Outputs:
        check_equal_lengths(q, k)
        return lsh.chunked(q, v, self.hash(q), chunk=self.chunk, causal=True)

    def step(
        self, q_i: Query, k_i: Key, v_i: Value, state: KeyValueCache
    ) -> tuple[Output, KeyValueCache]:
        return super().step(q_i, q_i, v_i, state)

    def prefill(
        self, q: Queries, k: Keys, v: Values, state: KeyValueCache | None = None
    ) -> tuple[Outputs, KeyValueCache]:
        check_equal_lengths(q, k)
        return super().prefill(q, q, v, state)

    def attend(self, q: Queries, cache: KeyValueCache, start: int) -> Outputs:
        every = cache.keys.transpose(1, 2)
        return self.forward(every, every, cache.values.transpose(1, 2))[:, start:]
