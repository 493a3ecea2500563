"""Sparse factorised attention (Child et al., 2019), computed sparsely in both forms."""

from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.attention.cache import CachedAttention
from linear_transformers.attention.softmax import attended
from linear_transformers.config.ranges import Size, check_choice, ranged
from linear_transformers.ops import sparse

PATTERNS = {
    "strided": (sparse.strided, sparse.strided_positions),
    "fixed": (sparse.fixed, sparse.fixed_positions),
}


class SparseAttention(CachedAttention):
    """Softmax over about 2 l + t / l of the t positions; each head sees both parts of a pattern.

    Costs O(t (l + t / l)), which is O(t sqrt(t)) where l is near sqrt(t): 28 for MNIST, 55 for
    CIFAR-10. A step reads as few entries of its cache, which holds all t.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        pattern: The positions attended to: `strided` (the last l, and every l-th before), for
            data with a period, such as the rows of an image, or `fixed` (the query's block of l,
            and the end of each block before), for data without.
        stride: The stride, l.
        summary: The number of positions at a block's end that all later blocks see, if `fixed`.

    Raises:
        ValueError: The pattern is unknown, or a number is out of its range.
    """

    @ranged
    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        pattern: str = "strided",
        stride: Size = 32,
        summary: Size = 8,
    ):
        super().__init__(num_heads, head_dim)
        check_choice("pattern", pattern, PATTERNS)
        if pattern == "fixed" and summary > stride:
            raise ValueError(
                f"stride={stride} and summary={summary} were asked for; summary must be at most "
                "stride where pattern=fixed."
            )
        self.all_positions, self.visible_to = PATTERNS[pattern]
        self.numbers = {"stride": stride, "summary": summary}

    def attend(self, q: sh.Queries, keys: Tensor, values: Tensor, start: int) -> sh.Outputs:
        if q.shape[1] > 1:
            k, v = keys.transpose(1, 2), values.transpose(1, 2)
            return self.all_positions(q, k, v, start=start, **self.numbers)
        seen = self.visible_to(start, **self.numbers).to(q.device)
        keys, values = (x.index_select(2, seen) for x in (keys, values))
        return attended(q, keys, values)
