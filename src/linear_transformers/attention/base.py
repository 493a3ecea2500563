"""The contract that every attention keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.attention.states import SEQUENCE, Recurrent, State
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.ops.groups import check_groups
from linear_transformers.ops.lengths import check_lengths

Memory = TypeVar("Memory")


class Heads:
    """The axes that inputs have: those of sequences, then the heads and their width.

    Attributes:
        num_heads: The number of heads.
        head_dim: The width of each.
        num_key_heads: The number of heads of keys and values: as many, unless queries are grouped.
    """

    num_heads: int
    head_dim: int
    num_key_heads: int

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Check the axes [batch, time, head, width] of inputs to the causal form.

        Raises:
            ValueError: They are other ones, of another number of heads, or not equally many.
        """
        self.check_heads(SEQUENCE, q, keys=(k, v))
        if not 0 < q.shape[1] == k.shape[1] == v.shape[1]:
            raise ValueError(
                f"Causal attention was given {q.shape[1]} queries and {k.shape[1]} keys with "
                f"{v.shape[1]} values. Give as many of one as of the others, at least one; earlier "
                "keys belong in the state."
            )

    def check_heads(
        self, axes: tuple[str, ...], *queries: Tensor, keys: tuple[Tensor, ...] = ()
    ) -> None:
        """Check that inputs have these axes, then one for the heads and one for their width.

        Args:
            axes: The names of the axes before those of heads and width.
            *queries: Inputs of which each head has its own.
            keys: Keys and values, of which a group of heads may share one.

        Raises:
            ValueError: They do not, or are of several batches.
        """
        inputs = (*queries, *keys)
        for i, x in enumerate(inputs):
            heads = self.num_heads if i < len(queries) else self.num_key_heads
            if x.ndim != len(axes) + 2 or x.shape[-2:] != (heads, self.head_dim):
                wanted = ", ".join((*axes, f"{heads} heads", f"width {self.head_dim}"))
                raise ValueError(
                    f"{type(self).__name__} was given {list(x.shape)}, and takes [{wanted}]. "
                    "transpose(1, 2) turns [batch, head, time, width] into it."
                )
            if not x.is_floating_point():
                raise ValueError(
                    f"{type(self).__name__} was given {x.dtype}: outputs would be cut to whole "
                    "numbers. Give x.float()."
                )
            if x.shape[0] != inputs[0].shape[0]:  # len(x) would fix the size when it is exported
                raise ValueError(
                    f"{type(self).__name__} was given batches of {len(inputs[0])} and {len(x)}. "
                    "Give queries, keys and values of the same sequences."
                )


class CausalAttention(Heads, Recurrent[State]):
    """Attention that can be trained in parallel and run one position at a time.

    No method but `step_in_place` changes the state it is given. One that is `divisible` has
    `past_before`, too.

    Attributes:
        weights_sum_to_one: Whether outputs are means of values, so that a constant is preserved.
        shares_keys: Whether queries are their own keys; `k` is then ignored.
        rotates_features: Whether its methods take a `rotation`, for the features of queries and
            keys. Where they do not, queries and keys are rotated before.
    """

    weights_sum_to_one: ClassVar[bool] = True
    shares_keys: ClassVar[bool] = False
    rotates_features: ClassVar[bool] = False
    free_options: ClassVar[frozenset[str]] = frozenset({"kernel", "chunk_size", "block_size"})

    @ranged
    def __init__(self, num_heads: Size, head_dim: Size, *, num_key_heads: Size | None = None):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_key_heads = num_heads if num_key_heads is None else num_key_heads
        self.group = check_groups(num_heads, self.num_key_heads)

    def forward(self, q: sh.Queries, k: sh.Keys, v: sh.Values) -> sh.Outputs:
        """Return the outputs of all positions, each seeing itself and those before it.

        Raises:
            ValueError: See `check`.
        """
        return self.prefill(q, k, v)[0]

    @abstractmethod
    def step(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: State
    ) -> tuple[sh.Output, State]:
        """Return the output of one position, and the state that includes it."""

    def step_in_place(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: State
    ) -> tuple[sh.Output, State]:
        """Take a `step` that may overwrite the given state, which must not be used again."""
        return self.step(q_i, k_i, v_i, state)

    @abstractmethod
    def prefill(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, state: State | None = None
    ) -> tuple[sh.Outputs, State]:
        """Return the outputs of positions that follow `state`, and the state after them.

        Raises:
            ValueError: See `check`.
        """


class BidirectionalAttention(Heads, ABC):
    """Attention without a causal mask, as encoders use it."""

    @abstractmethod
    def bidirectional(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, lengths: sh.Lengths | None = None
    ) -> sh.Outputs:
        """Return the outputs of all positions, each seeing what is after it as well.

        Args:
            q: The queries.
            k: The keys.
            v: The values.
            lengths: The length of each sequence, at least 1; None is all of it. Padding is
                ignored, and outputs at padding are undefined.

        Raises:
            ValueError: See `check_memory`.
        """

    def check_memory(self, k: Tensor, v: Tensor, lengths: Tensor | None) -> None:
        """Check the keys and values of whole sequences, and their lengths.

        Args:
            k: The keys; or the queries, where they are their own keys.
            v: The values.
            lengths: The length of each sequence, or None.

        Raises:
            ValueError: They have other axes, or there are not as many of one as of the others; or
                see `check_lengths`.
        """
        self.check_heads(SEQUENCE, keys=(k, v))
        if not 0 < k.shape[1] == v.shape[1]:
            raise ValueError(
                f"{type(self).__name__} was given {k.shape[1]} keys and {v.shape[1]} values. "
                "Give as many of one as of the other, at least one."
            )
        if lengths is not None:
            check_lengths(lengths, *k.shape[:2])


class CrossAttention(BidirectionalAttention, Generic[Memory]):
    """Attention to another sequence, as decoders use it.

    Keys and values are summarised once, into a memory that any number of queries read.
    """

    @abstractmethod
    def summarize(self, k: sh.Keys, v: sh.Values, lengths: sh.Lengths | None = None) -> Memory:
        """Return the memory of all keys and values, or of each sequence's first `lengths`: a tensor
        or a named tuple of tensors, sequences first.

        Raises:
            ValueError: See `check_memory`.
        """

    @abstractmethod
    def read(self, q: sh.Queries, memory: Memory) -> sh.Outputs:
        """Return the output of each query to a memory."""

    def bidirectional(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, lengths: sh.Lengths | None = None
    ) -> sh.Outputs:
        return self.read(q, self.summarize(k, v, lengths))


# Called with num_heads and head_dim, once per layer.
AttentionFactory = Callable[[int, int], CausalAttention]
