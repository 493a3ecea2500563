"""The contract that every attention keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from linear_transformers.shapes import (
    Key,
    Keys,
    Lengths,
    Output,
    Outputs,
    Queries,
    Query,
    Rows,
    Value,
    Values,
)

State = TypeVar("State")
Memory = TypeVar("Memory")


class CausalAttention(nn.Module, ABC, Generic[State]):
    """Attention that can be trained in parallel and run one position at a time.

    The two forms are one function: stepping through a sequence from `init_state` yields
    exactly what `forward` yields, up to rounding. `tests/attention/test_contract.py` holds
    every backend to it, and to the promises that the backend declares below.

    States are values: no method but `step_in_place` changes the state it is given, so a state
    can be kept and continued twice (many completions of one prefix).

    Attributes:
        kernel: Which implementation of the parallel form was asked for.
        constant_state: Whether the state's size is independent of how much was read.
        exactly_causal: Whether no output depends on a later position. Where one does, its
            likelihoods are none, and stepping cannot give what `forward` gives.
        weights_sum_to_one: Whether outputs are means of values: a constant comes back as it is.
        shares_keys: Whether queries are their own keys; `k` is not looked at.
    """

    kernel: str
    constant_state: ClassVar[bool]
    exactly_causal: ClassVar[bool] = True
    weights_sum_to_one: ClassVar[bool] = True
    shares_keys: ClassVar[bool] = False

    def __init__(self, num_heads: int, head_dim: int):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim

    def kernel_on(self, device: torch.device) -> str:
        """Which implementation runs there, for the run's log."""
        return self.kernel

    def forward(self, q: Queries, k: Keys, v: Values) -> Outputs:
        """Every position at once, each seeing itself and those before it.

        Raises:
            ValueError: The queries and keys are not equally many.
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
        """The empty past.

        Args:
            batch: How many sequences run side by side.
            device: Where the state lives.
            dtype: The type of the inputs to come. Sums may be kept in a wider one.
            capacity: How many positions are expected. A hint to reserve memory once; more may
                come, and states of constant size ignore it.
        """

    def state_bytes(self, length: int, dtype: torch.dtype = torch.float32) -> int:
        """What is remembered of one sequence after `length` positions, in bytes."""
        state: Any = self.init_state(1, device="meta", dtype=dtype)
        parts = (state,) if isinstance(state, Tensor) else state
        return sum(part.nbytes for part in parts if isinstance(part, Tensor))

    @abstractmethod
    def step(self, q_i: Query, k_i: Key, v_i: Value, state: State) -> tuple[Output, State]:
        """One position: its output, and the state that includes it."""

    def step_in_place(self, q_i: Query, k_i: Key, v_i: Value, state: State) -> tuple[Output, State]:
        """`step`, which may change the state it is given: that must not be used again."""
        return self.step(q_i, k_i, v_i, state)

    @abstractmethod
    def select(self, state: State, rows: Rows) -> State:
        """The state of some of the sequences; a row that is named twice is forked."""

    @abstractmethod
    def prefill(
        self, q: Queries, k: Keys, v: Values, state: State | None = None
    ) -> tuple[Outputs, State]:
        """A whole stretch in parallel after `state`, and the state after it.

        Raises:
            ValueError: The queries and keys are not equally many.
        """


class BidirectionalAttention(ABC):
    """What a backend adds that can also see everything, as encoders do."""

    @abstractmethod
    def bidirectional(
        self, q: Queries, k: Keys, v: Values, lengths: Lengths | None = None
    ) -> Outputs:
        """Every position sees all positions of its sequence.

        Args:
            q: Queries.
            k: Keys.
            v: Values.
            lengths: How many positions each sequence has, at least 1; None is all. What
                padding holds is not looked at, and the outputs at padding mean nothing.
        """


class CrossAttention(BidirectionalAttention, Generic[Memory]):
    """What a backend adds whose queries may be of another sequence than its keys, as decoders'
    are: the keys and values are summarised once, and read as often as there are queries."""

    @abstractmethod
    def summarize(self, k: Keys, v: Values, lengths: Lengths | None = None) -> Memory:
        """What is kept of all keys and values, or of each sequence's first `lengths`."""

    @abstractmethod
    def read(self, q: Queries, memory: Memory) -> Outputs:
        """What each query finds in it."""

    def bidirectional(
        self, q: Queries, k: Keys, v: Values, lengths: Lengths | None = None
    ) -> Outputs:
        return self.read(q, self.summarize(k, v, lengths))


# Called with num_heads and head_dim, once a layer.
AttentionFactory = Callable[[int, int], CausalAttention]


def check_equal_lengths(q: Queries, k: Keys) -> None:
    """Causal attention pairs position i with position i: other shapes have no meaning."""
    if q.shape[1] != k.shape[1]:
        raise ValueError(
            f"Causal attention was given {q.shape[1]} queries and {k.shape[1]} keys. "
            "Give as many of one as of the other; earlier keys belong in the state."
        )
