"""The contract that every mixer keeps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from linear_transformers.attention.base import SEQUENCE, bytes_of, of_rows
from linear_transformers.ops.pieces import Piece
from linear_transformers.shapes import Hidden, HiddenOne, Lengths, Rows

State = TypeVar("State")


class Mixer(nn.Module, ABC, Generic[State]):
    """A layer that mixes positions: vectors to vectors, with projections of its own.

    The two forms are one function: stepping through a sequence from `init_state` yields exactly
    what `forward` yields, up to rounding. States are values: only `step` with `in_place` changes
    the state it is given.

    Attributes:
        constant_state: Whether the state's size is independent of the length of the past.
        exactly_causal: Whether no output depends on a later position.
        divisible: Whether sequences can be cut into pieces on several devices.
        free_options: The options on which only speed and memory depend.
    """

    constant_state: bool
    exactly_causal: bool = True
    divisible: bool = False
    free_options: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        """The name of what mixes, for people."""
        return type(self).__name__

    @property
    def is_bidirectional(self) -> bool:
        """Whether there is a form in which each position sees the whole of its sequence."""
        return False

    def kernel_on(self, device: torch.device) -> str:
        """Return the name of the implementation that runs on a device.

        Raises:
            ValueError: The requested implementation cannot run there.
        """
        return "torch"

    def check_vectors(self, axes: tuple[str, ...], x: Tensor, width: int) -> None:
        """Check that inputs have these axes, then one of this width.

        Args:
            axes: The names of the axes before that of width.
            x: The inputs.
            width: The width of inputs and outputs, e.

        Raises:
            ValueError: They do not.
        """
        if x.ndim != len(axes) + 1 or x.shape[-1] != width:
            raise ValueError(
                f"{type(self).__name__} was given {list(x.shape)}, and takes "
                f"[{', '.join((*axes, f'width {width}'))}]."
            )
        if axes == SEQUENCE and x.shape[1] == 0:
            raise ValueError(f"{type(self).__name__} was given no position. Give at least one.")

    def forward(self, x: Hidden, piece: Piece | None = None) -> Hidden:
        """Return the outputs of all positions, each seeing itself and those before it.

        Args:
            x: The inputs.
            piece: The piece of longer sequences that x is, if earlier devices have others; the
                mixer has to be `divisible`. All devices call this together.
        """
        assert piece is None, f"{self.name} cannot be cut into pieces"
        return self.prefill(x)[0]

    def bidirectional(self, x: Hidden, lengths: Lengths | None = None) -> Hidden:
        """Return the outputs of all positions, each seeing the whole of its sequence.

        Args:
            x: The inputs.
            lengths: The length of each sequence, at least 1; None is all of it. Padding is
                ignored, and outputs at padding are undefined.
        """
        raise NotImplementedError(f"{self.name} has no bidirectional form")

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
        """Return the size of one sequence's state after `length` positions, in bytes. One that
        grows, and does not reserve its capacity, has to say so itself."""
        return bytes_of(self.init_state(1, device="meta", dtype=dtype, capacity=length))

    @abstractmethod
    def step(
        self, x_i: HiddenOne, state: State, *, in_place: bool = False
    ) -> tuple[HiddenOne, State]:
        """Return the output of one position, and the state that includes it.

        With `in_place`, the given state may be overwritten and must not be used again.
        """

    @abstractmethod
    def prefill(self, x: Hidden, state: State | None = None) -> tuple[Hidden, State]:
        """Return the outputs of positions that follow `state`, and the state after them."""

    def select(self, state: State, rows: Rows) -> State:
        """Return the state of some of the sequences; a row named twice is forked.

        Overridden where a state is no tensor and no named tuple of tensors, sequences first.
        """
        return of_rows(state, rows)


# Called with model_dim and num_heads, once per layer.
MixerFactory = Callable[[int, int], Mixer]
