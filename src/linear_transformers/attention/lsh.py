"""LSH attention that is exactly causal, with a bounded state. See `ops.lsh`."""

import torch

from linear_transformers import shapes as sh
from linear_transformers.attention.base import CausalAttention
from linear_transformers.attention.hashing import BucketAttention, HashPlanes
from linear_transformers.attention.states import POSITION, check_past
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.ops import lsh
from linear_transformers.ops.lsh import LshState


class LshAttention(BucketAttention, CausalAttention[LshState]):
    """Softmax over the last `window` positions of the query's own bucket, in each round.

    The exactly causal form of Reformer (Kitaev et al., 2020): which positions are attended to
    depends on earlier ones only. `bidirectional` is Reformer's own form.

    Costs O(t a w d) for t positions; the state holds a w keys and values a bucket and head.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        num_rounds: The number of hashing rounds, a, whose sums are added up.
        num_buckets: The number of buckets of a round, which is even.
        window: The number of positions attended to, w; also the chunk of the bidirectional form.

    Raises:
        ValueError: A number is too small, or the number of buckets is odd.
    """

    constant_state = True

    @ranged
    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        num_rounds: Size = 4,
        num_buckets: Size = 16,
        window: Size = 32,
    ):
        super().__init__(num_heads, head_dim)
        self.hash = HashPlanes(num_heads, head_dim, num_rounds, num_buckets)
        self.window = self.chunk = window
        self._sizes = num_heads, num_rounds, num_buckets, window, head_dim  # of what is kept

    def forward(self, q: sh.Queries, k: sh.Keys, v: sh.Values) -> sh.Outputs:
        self.check(q, k, v)
        return lsh.windowed(q, v, self.hash(q), window=self.window)

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> LshState:
        shape = (batch, *self._sizes)
        keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        counts = torch.zeros(shape[:4], device=device, dtype=torch.long)
        return LshState(keys, values, counts, 0)

    def step(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: LshState
    ) -> tuple[sh.Output, LshState]:
        self.check_heads(POSITION, q_i, v_i)
        check_past(q_i, state.keys, *self._sizes)
        return lsh.windowed_step(q_i, v_i, self.hash(q_i.unsqueeze(1)).squeeze(-1), state)

    def prefill(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, state: LshState | None = None
    ) -> tuple[sh.Outputs, LshState]:
        self.check(q, k, v)
        if state is None:
            state = self.init_state(len(q), device=q.device, dtype=q.dtype)
        check_past(q, state.keys, *self._sizes)
        buckets = self.hash(q)
        outputs = lsh.windowed(q, v, buckets, window=self.window, state=state)
        return outputs, lsh.remember(q, v, buckets, state)
