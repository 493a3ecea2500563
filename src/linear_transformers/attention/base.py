"""The contract that every causal attention keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

import torch
from torch import nn

from linear_transformers.shapes import (
    Key,
    Keys,
    Output,
    Outputs,
    Queries,
    Query,
    Rows,
    Value,
    Values,
)

State = TypeVar("State")


class CausalAttention(nn.Module, ABC, Generic[State]):
    """Attention that can be trained in parallel and run one position at a time.

    The two forms are one function: stepping through a sequence from `init_state` yields
    exactly what `forward` yields, up to rounding. `tests/attention/test_contract.py` holds
    every backend to it.

    States are values: no method changes the state it is given, so a state can be kept and
    continued twice (many completions of one prefix).

    Attributes:
        kernel: Which implementation of the parallel form runs, for the run's log.
        constant_state: Whether the state's size is independent of how much was read.
    """

    kernel: ClassVar[str]
    constant_state: ClassVar[bool]

    def __init__(self, num_heads: int, head_dim: int):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim

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

    @abstractmethod
    def step(self, q_i: Query, k_i: Key, v_i: Value, state: State) -> tuple[Output, State]:
        """One position: its output, and the state that includes it."""

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


# Called with num_heads and head_dim, once a layer.
AttentionFactory = Callable[[int, int], CausalAttention]


def check_equal_lengths(q: Queries, k: Keys) -> None:
    """Causal attention pairs position i with position i: other shapes have no meaning."""
    if q.shape[1] != k.shape[1]:
        raise ValueError(
            f"Causal attention was given {q.shape[1]} queries and {k.shape[1]} keys. "
            "Give as many of one as of the other; earlier keys belong in the state."
        )
