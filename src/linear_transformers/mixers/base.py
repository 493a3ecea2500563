"""The contract that every mixer keeps."""

from abc import abstractmethod
from collections.abc import Callable

from torch import Tensor

from linear_transformers.attention.states import SEQUENCE, Recurrent, State
from linear_transformers.ops.pieces import Piece
from linear_transformers.shapes import Hidden, HiddenOne, Lengths


class Mixer(Recurrent[State]):
    """A layer that mixes positions: vectors to vectors, with projections of its own.

    Of its methods only `step` with `in_place` changes the state it is given.
    """

    @property
    def name(self) -> str:
        """The name of what mixes, for people."""
        return type(self).__name__

    @property
    def is_bidirectional(self) -> bool:
        """Whether there is a form in which each position sees the whole of its sequence."""
        return False

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
    def step(
        self, x_i: HiddenOne, state: State, *, in_place: bool = False
    ) -> tuple[HiddenOne, State]:
        """Return the output of one position, and the state that includes it.

        With `in_place`, the given state may be overwritten and must not be used again.
        """

    @abstractmethod
    def prefill(self, x: Hidden, state: State | None = None) -> tuple[Hidden, State]:
        """Return the outputs of positions that follow `state`, and the state after them."""


# Called with model_dim and num_heads, once per layer.
MixerFactory = Callable[[int, int], Mixer]
