"""The contract that every attention keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from linear_transformers import shapes as sh
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.ops.groups import check_groups
from linear_transformers.ops.lengths import check_lengths

SEQUENCE = ("batch", "time")  # the axes of a sequence and of a position before heads and width
POSITION = ("batch",)
State = TypeVar("State")
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


def of_rows(state: Any, rows: sh.Rows) -> Any:
    """Return some rows of a tensor, or of each tensor of a tuple; what is none is of all rows."""
    if isinstance(state, Tensor):
        return state[rows]
    return type(state)(*(x[rows] if isinstance(x, Tensor) else x for x in state))


def bytes_of(state: Any) -> int:
    """Return the size of a tensor or a buffer, or of all that a tuple of them holds."""
    return sum(map(bytes_of, state)) if isinstance(state, tuple) else getattr(state, "nbytes", 0)


def check_past(inputs: Tensor, past: Tensor, *sizes: int) -> None:
    """Check that a state, or a memory, is of as many sequences as inputs are.

    Args:
        inputs: The inputs, whose first axis is that of sequences.
        past: A part of the state, whose first axis is too.
        *sizes: The sizes of its other axes, if they are always the same.

    Raises:
        ValueError: It is not; of one sequence, or one head, either would be broadcast over the
            others.
    """
    if inputs.shape[0] != past.shape[0]:
        raise ValueError(
            f"There are inputs of {len(inputs)} sequences and a state of {len(past)}. Give the "
            "state of the same sequences."
        )
    if sizes and past.shape[1:] != sizes:
        raise ValueError(
            f"A part of the state is {list(past.shape[1:])} for each sequence, and has to be "
            f"{list(sizes)}. Give the state of this layer."
        )


class CausalAttention(Heads, nn.Module, ABC, Generic[State]):
    """Attention that can be trained in parallel and run one position at a time.

    The two forms are one function: stepping through a sequence from `init_state` yields
    exactly what `forward` yields, up to rounding. `tests/attention/test_contract.py` holds
    every mechanism to it, and to the promises that the class declares below.

    States are values: no method but `step_in_place` changes the state it is given, so a state
    can be kept and continued twice (many completions of one prefix).

    Attributes:
        kernel: The name of the requested implementation of the parallel form. A mechanism with
            several makes it an option; most have one, in PyTorch.
        constant_state: Whether the state's size is independent of the length of the past.
        exactly_causal: Whether no output depends on a later position. Otherwise its likelihoods
            are not valid, and stepping cannot give what `forward` gives.
        weights_sum_to_one: Whether outputs are means of values, so that a constant is preserved.
        shares_keys: Whether queries are their own keys; `k` is then ignored.
        divisible: Whether sequences can be cut into pieces on several devices, by `past_before`.
        rotates_features: Whether its methods take a `rotation`, for the features of queries and
            keys. Where they do not, queries and keys are rotated before.
        free_options: The options on which only speed and memory depend. They may change when a
            checkpoint is continued or used.
    """

    kernel: str = "torch"
    constant_state: ClassVar[bool]
    exactly_causal: ClassVar[bool] = True
    weights_sum_to_one: ClassVar[bool] = True
    shares_keys: ClassVar[bool] = False
    divisible: ClassVar[bool] = False
    rotates_features: ClassVar[bool] = False
    free_options: ClassVar[frozenset[str]] = frozenset({"kernel", "chunk_size", "block_size"})

    @ranged
    def __init__(self, num_heads: Size, head_dim: Size, *, num_key_heads: Size | None = None):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_key_heads = num_heads if num_key_heads is None else num_key_heads
        self.group = check_groups(num_heads, self.num_key_heads)

    def kernel_on(self, device: torch.device) -> str:
        """Return the name of the implementation that runs on a device, with `auto` resolved.

        Raises:
            ValueError: The requested implementation cannot run there.
        """
        return self.kernel

    def forward(self, q: sh.Queries, k: sh.Keys, v: sh.Values) -> sh.Outputs:
        """Return the outputs of all positions, each seeing itself and those before it.

        Raises:
            ValueError: See `check`.
        """
        return self.prefill(q, k, v)[0]

    @abstractmethod
    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> State:
        """Return the initial (empty) state.

        Args:
            batch: The number of sequences, b.
            device: The device of the state.
            dtype: The type of the inputs to come. Sums may be kept in a wider one.
            capacity: The number of positions to reserve memory for. More may follow; states of
                constant size ignore it.
        """

    def state_bytes(self, length: int, dtype: torch.dtype = torch.float32) -> int:
        """Return the size of one sequence's state after `length` positions, in bytes."""
        return bytes_of(self.init_state(1, device="meta", dtype=dtype, capacity=length))

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

    def select(self, state: State, rows: sh.Rows) -> State:
        """Return the state of some of the sequences; a row named twice is forked.

        Overridden where a state is no tensor and no named tuple of tensors, sequences first.
        """
        return of_rows(state, rows)

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
