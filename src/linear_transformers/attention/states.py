"""What has a recurrent form, and the states that it keeps."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from linear_transformers.shapes import Rows

SEQUENCE = ("batch", "time")  # the axes of a sequence and of a position before heads and width
POSITION = ("batch",)
State = TypeVar("State")


class Recurrent(nn.Module, ABC, Generic[State]):
    """A layer of two forms, in parallel over positions and one position at a time.

    The two are one function: stepping through a sequence from `init_state` yields exactly what
    `forward` yields, up to rounding. Tests hold every one to it, in `test_contract.py`, and to the
    promises that the class declares below.

    States are values: no method changes the state it is given, unless it says so, so a state can
    be kept and continued twice (many completions of one prefix).

    Attributes:
        kernel: The name of the requested implementation of the parallel form. What has several
            makes it an option; most have one, in PyTorch.
        constant_state: Whether the state's size is independent of the length of the past.
        exactly_causal: Whether no output depends on a later position. Otherwise its likelihoods
            are not valid, and stepping cannot give what `forward` gives.
        divisible: Whether sequences can be cut into pieces on several devices.
        free_options: The options on which only speed and memory depend. They may change when a
            checkpoint is continued or used.
    """

    kernel: str = "torch"
    constant_state: bool
    exactly_causal: bool = True
    divisible: bool = False
    free_options: ClassVar[frozenset[str]] = frozenset()

    def kernel_on(self, device: torch.device) -> str:
        """Return the name of the implementation that runs on a device, with `auto` resolved.

        Raises:
            ValueError: The requested implementation cannot run there.
        """
        return self.kernel

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
        """Return the size of one sequence's state after `length` positions, in bytes.

        Overridden where a state grows and does not reserve its capacity.
        """
        return bytes_of(self.init_state(1, device="meta", dtype=dtype, capacity=length))

    def select(self, state: State, rows: Rows) -> State:
        """Return the state of some of the sequences; a row named twice is forked.

        Overridden where a state is no tensor and no named tuple of tensors, sequences first.
        """
        return of_rows(state, rows)


def of_rows(state: Any, rows: Rows) -> Any:
    """Return some rows of a tensor, or of each tensor of a tuple; what is none is of all rows."""
    if isinstance(state, Tensor):
        return state[rows]
    return type(state)(*(x[rows] if isinstance(x, Tensor) else x for x in state))


def count_of(state: Any) -> int:
    """Return the number of sequences of a tensor, or of a tuple of tensors."""
    return len(state if isinstance(state, Tensor) else state[0])


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
