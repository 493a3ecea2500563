"""Reformer's LSH attention as it was published (Kitaev et al., 2020). See `ops.lsh`."""

from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.attention.cache import CachedAttention, KeyValueCache
from linear_transformers.attention.hashing import BucketAttention, HashPlanes
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.ops import lsh


class ReformerAttention(BucketAttention, CachedAttention):
    """Softmax over the query's own bucket, in its chunk of the sorted sequence and the one before.

    Not exactly causal: a mask hides later positions, but they move the cuts between chunks and
    so change what earlier ones see. Its bits per dimension are not a valid likelihood. `step`
    recomputes all positions so far, as the paper did, and differs from `forward`. It is here to
    reproduce the paper's table, and for encoders; `model=lsh4` is the exactly causal form.

    Costs O(t a chunk d) for t positions, and as much for each step.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        num_rounds: The number of hashing rounds, a, whose sums are added up.
        num_buckets: The number of buckets of a round, which is even. The paper's images: 64.
        chunk: The positions of a chunk. The paper's: 29 for MNIST, 37 for CIFAR-10.

    Raises:
        ValueError: A number is too small, or the number of buckets is odd.
    """

    exactly_causal = False

    @ranged
    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        num_rounds: Size = 4,
        num_buckets: Size = 16,
        chunk: Size = 32,
    ):
        super().__init__(num_heads, head_dim)
        self.hash = HashPlanes(num_heads, head_dim, num_rounds, num_buckets)
        self.chunk = chunk

    def forward(self, q: sh.Queries, k: sh.Keys, v: sh.Values) -> sh.Outputs:
        self.check(q, k, v)
        return lsh.chunked(q, v, self.hash(q), chunk=self.chunk, causal=True)

    def step(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: KeyValueCache
    ) -> tuple[sh.Output, KeyValueCache]:
        return super().step(q_i, q_i, v_i, state)

    def prefill(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, state: KeyValueCache | None = None
    ) -> tuple[sh.Outputs, KeyValueCache]:
        self.check(q, k, v)
        return super().prefill(q, q, v, state)

    def attend(self, q: sh.Queries, keys: Tensor, values: Tensor, start: int) -> sh.Outputs:
        every = keys.transpose(1, 2)
        outputs = self.forward(every, every, values.transpose(1, 2))[:, start:]
        return outputs.to(q.dtype)
