"""One layer of a decoder: a block that also attends to another sequence."""

from typing import Any, NamedTuple

from linear_transformers.attention.states import count_of, of_rows
from linear_transformers.mixers import CrossFactory, MixerFactory
from linear_transformers.models.block import Block, norm_of
from linear_transformers.models.dropout import Dropout
from linear_transformers.ops.dropout import Draw
from linear_transformers.ops.pieces import Piece
from linear_transformers.shapes import Hidden, HiddenOne, Rows, Sources


class DecoderState(NamedTuple):
    """The state of a decoder's block: its mixer's, and the memories of the sources.

    Attributes:
        past: The mixer's state of each row.
        memory: The memory of each source.
        readers: The number of rows, one after the other, that read each source.
    """

    past: Any
    memory: Any
    readers: int = 1


class DecoderBlock(Block):
    """A block with a third sublayer between its two: attention to another sequence, the source.

    Its state holds what remains of the source: after `summarize`, the source is not read again.

    Args:
        mixer: See `Block`.
        cross: The constructor of this layer's attention to the source.
        model_dim: See `Block`.
        num_heads: The number of heads of the mixer, and of `cross`.
        dropout: The dropout rate of all three sublayers' outputs and of the hidden layer.
        norm_type: See `Block`.
        **options: See `Block`.

    Raises:
        ValueError: See `Block`, or `cross` refuses its sizes.
    """

    def __init__(
        self,
        mixer: MixerFactory,
        *,
        cross: CrossFactory,
        model_dim: int,
        num_heads: int,
        dropout: float,
        norm_type: str,
        **options: Any,
    ):
        own = {"model_dim": model_dim, "num_heads": num_heads, "dropout": dropout}
        super().__init__(mixer, **own, norm_type=norm_type, **options)
        self.cross = cross(model_dim, num_heads)
        self.cross_norm = norm_of(norm_type, model_dim)
        self.cross_dropout = Dropout(dropout)

    def forward(
        self,
        x: Hidden,
        draw: Draw | None = None,
        piece: Piece | None = None,
        memory: Any = None,
    ) -> Hidden:
        """Return the outputs of all positions, each seeing those before it and the source.

        Args:
            x: The inputs.
            draw: See `Block`.
            piece: See `Block`.
            memory: The memory of the source.
        """
        x = self._mixed(x, self.mixer(self._normed(x), piece), draw)
        return self._fed(self._crossed(x, memory, draw), draw)

    def step(
        self, x_i: HiddenOne, state: DecoderState, *, in_place: bool = False
    ) -> tuple[HiddenOne, DecoderState]:
        mixed, past = self.mixer.step(self._normed(x_i), state.past, in_place=in_place)
        # To the source, its readers' positions are as good as positions of one sequence.
        x = self._mixed(x_i, mixed).unflatten(0, (-1, state.readers))
        return self._fed(self._crossed(x, state.memory)).flatten(0, 1), state._replace(past=past)

    def select(
        self, state: DecoderState, rows: Rows, sources: Sources | None = None
    ) -> DecoderState:
        """Return the state of some of the rows; see `Transformer.select`."""
        past = self.mixer.select(state.past, rows)
        if sources is None:
            return DecoderState(past, of_rows(state.memory, rows // state.readers))
        readers, rest = divmod(len(rows), len(sources))
        if rest:
            raise ValueError(
                f"{len(rows)} rows cannot share {len(sources)} sources evenly. Give as many rows "
                "for each source."
            )
        if len(sources) == count_of(state.memory):  # all of them: nothing is copied
            return DecoderState(past, state.memory, readers)
        return DecoderState(past, of_rows(state.memory, sources), readers)

    def prefill(
        self, x: Hidden, state: DecoderState | None = None, draw: Draw | None = None
    ) -> tuple[Hidden, DecoderState]:
        assert state is not None, "the memory of the source is in the state"
        if state.readers > 1:
            raise ValueError(
                f"{state.readers} sequences share a source, for which there is only `step`. "
                "Select them without `sources` first."
            )
        mixed, past = self.mixer.prefill(self._normed(x), state.past)
        x = self._crossed(self._mixed(x, mixed, draw), state.memory, draw)
        return self._fed(x, draw), state._replace(past=past)

    def _crossed(self, x: Hidden, memory: Any, draw: Draw | None = None) -> Hidden:
        """Return the second sublayer's output."""
        read = self.cross(self.cross_norm(x) if self.pre_norm else x, memory)
        x = self.cross_dropout(read, draw, residual=x)
        return x if self.pre_norm else self.cross_norm(x)
