"""A stack of blocks, vectors to vectors: the core of every model of this project."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from linear_transformers.attention import WindowAttention
from linear_transformers.config.ranges import Depth, Fraction, Period, Size, ranged
from linear_transformers.mixers import CrossFactory, Mixer, MixerFactory
from linear_transformers.models.block import Block, norm_of
from linear_transformers.models.decoder import DecoderBlock, DecoderState
from linear_transformers.models.dropout import Draws, number
from linear_transformers.models.positions import Positions
from linear_transformers.ops.lengths import check_lengths, valid
from linear_transformers.ops.pieces import Piece
from linear_transformers.ops.precision import without_autocast
from linear_transformers.shapes import Hidden, HiddenOne, Lengths, Rows, Source, Sources

Inputs = Float[Tensor, "b t i"]
InputsOne = Float[Tensor, "b i"]


class StackState(NamedTuple):
    """The number of positions read so far, and the state of each layer.

    In a captured or exported graph the position is a tensor of one number, on the device.
    """

    position: int | Int[Tensor, "1"]
    layers: tuple[Any, ...]


class Head(nn.Linear):
    """The last projection of a model, in the type of its weights whatever autocast has: means in
    bfloat16 are coarser than the gap between 256 levels."""

    def forward(self, input: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch p"]:
        with without_autocast(input):
            return super().forward(input.to(self.weight.dtype))


class Transformer(nn.Module):
    """Position embeddings, blocks, and a final norm.

    A causal stack keeps the mixers' contract: `forward`, `init_state`, `step`, `prefill`. Any
    other has `forward` only, and every position sees the whole of its sequence.

    With `cross` it is a decoder: every position also sees another sequence, the source, of which
    each layer keeps a memory.

    Args:
        mixer: The constructor of each layer's mixer.
        max_length: The length of the longest sequence, or those of the axes that it runs through
            (rows, columns, channels), the last one fastest; None is no bound.
        cross: The constructor of each layer's attention to the source; None is no decoder.
        local: The constructor of local layers' mixers, in place of `mixer`; None is no such layers.
        local_every: The period of local layers: 4 makes layers 4, 8, 12 and so on local.
        num_layers: The number of blocks.
        num_heads: The number of heads, h, a divisor of `model_dim`.
        model_dim: The width of the stack, e.
        feedforward_dim: The width of the blocks' hidden layer; None is 4 e, the paper's, or
            with `swiglu`, which has a third matrix, 8/3 e in whole multiples of 8.
        dropout: The dropout rate, after position embeddings and in blocks.
        positions: The kind of position embeddings; see `Positions`.
        norm: The place of norms: `post` (the paper) or `pre`.
        norm_type: The kind of norms: `layer` (the paper) or `rms`.
        activation: The feed-forward activation: `relu` (the paper), `gelu` or `swiglu`.
        causal: Whether a position sees itself and earlier ones only.
        activation_checkpointing: Whether blocks are recomputed in the backward pass instead of
            storing their activations: less memory, about a third more time.

    Attributes:
        input_dim: The width of the inputs, i.
        model_dim: The width of the outputs, e.
        draws: What masks of dropout are drawn from in training.

    Raises:
        ValueError: See `Block`, `DecoderBlock` and `Positions`; or the stack is not causal, and
            it has `cross`, or a mixer without a bidirectional form; or it has no layer that is to
            be a local one.
    """

    free_options: ClassVar[frozenset[str]] = frozenset({"dropout", "activation_checkpointing"})
    blocks: Sequence[Block]

    @ranged
    def __init__(
        self,
        mixer: MixerFactory,
        max_length: Size | tuple[Size, ...] | None = None,
        cross: CrossFactory | None = None,
        *,
        local: MixerFactory | None = None,
        local_every: Period = 4,
        num_layers: Depth,
        num_heads: Size,
        model_dim: Size,
        feedforward_dim: Size | None = None,
        dropout: Fraction = 0.1,
        positions: str = "concatenated",
        norm: str = "post",
        norm_type: str = "layer",
        activation: str = "relu",
        causal: bool = True,
        activation_checkpointing: bool = False,
    ):
        super().__init__()
        if feedforward_dim is None:
            gated = max(8, round(model_dim / 3) * 8)  # in all as many weights as without a gate
            feedforward_dim = gated if activation == "swiglu" else 4 * model_dim
        if cross is not None and not causal:
            raise ValueError(
                "A stack with cross is a decoder, which is causal. Leave out cross or causal=False."
            )
        self.causal = causal
        self.activation_checkpointing = activation_checkpointing
        self.model_dim = model_dim
        self.positions = Positions(
            model_dim, kind=positions, max_length=max_length, dropout=dropout
        )
        self.input_dim = self.positions.input_dim
        block = Block if cross is None else partial(DecoderBlock, cross=cross)
        if local is not None and local_every > num_layers:
            raise ValueError(
                f"local_every={local_every} makes layer {local_every} the first local one, and "
                f"there are {num_layers}. Use num_layers={local_every} or more."
            )
        self.blocks = nn.ModuleList(  # pyright: ignore[reportAttributeAccessIssue]
            block(
                mixer if local is None or layer % local_every else local,
                model_dim=model_dim,
                num_heads=num_heads,
                feedforward_dim=feedforward_dim,
                dropout=dropout,
                norm=norm,
                norm_type=norm_type,
                activation=activation,
            )
            for layer in range(1, num_layers + 1)
        )
        if not causal and (one_way := [x for x in self.mixers if not x.is_bidirectional]):
            raise ValueError(
                f"{one_way[0].name} has no bidirectional form. Use "
                "model.causal=true, or a model that has one: docs/attention.md."
            )
        if not isinstance(max_length, int | None) and len(max_length) > 1:
            for module in self.modules():
                if isinstance(module, WindowAttention):
                    module.lay_in_rows(math.prod(max_length[1:]))
        # Post-norm blocks end normalised; pre-norm ones leave a sum to normalise.
        self.norm = norm_of(norm_type, model_dim)
        self.draws = Draws()
        number(self)

    @property
    def mixers(self) -> list[Mixer[Any]]:
        """The mixer of each layer."""
        return [block.mixer for block in self.blocks]

    @property
    def mixer_name(self) -> str:
        """The names of its kinds of mixers, for people."""
        return " and ".join(dict.fromkeys(mixer.name for mixer in self.mixers))

    @property
    def constant_state(self) -> bool:
        """Whether the state's size is independent of the length of the past."""
        return all(mixer.constant_state for mixer in self.mixers)

    @property
    def exactly_causal(self) -> bool:
        """Whether no output depends on a later position."""
        return all(mixer.exactly_causal for mixer in self.mixers)

    @property
    def is_decoder(self) -> bool:
        """Whether every position also sees a source."""
        return isinstance(self.blocks[0], DecoderBlock)

    @property
    def decoder_blocks(self) -> list[DecoderBlock]:
        """The blocks, of a stack that was made with `cross`."""
        blocks = [block for block in self.blocks if isinstance(block, DecoderBlock)]
        assert blocks, "a stack without `cross` reads no source"
        return blocks

    @property
    def description(self) -> str:
        """The number of layers and the kind of mixer, for the run's log."""
        first, number = self.blocks[0], len(self.blocks)
        crossed = f", {first.cross.name} to the source" if isinstance(first, DecoderBlock) else ""
        return f"{number} layer{'s'[: number - 1]} of {self.mixer_name}{crossed}"

    def kernel_on(self, device: torch.device) -> str:
        """Return the names of the mixers' implementations on a device, for the run's log.

        Raises:
            ValueError: One that was requested cannot run there.
        """
        if not self.causal:
            return "bidirectional"
        return ", ".join(dict.fromkeys(mixer.kernel_on(device) for mixer in self.mixers))

    def summarize(self, source: Source, lengths: Lengths | None = None) -> tuple[Any, ...]:
        """Return the memory that each layer keeps of a source.

        Args:
            source: The outputs of an encoder.
            lengths: The length of each sequence, at least 1; None is all of it. Padding is ignored.
        """
        return tuple(block.cross.summarize(source, lengths) for block in self.decoder_blocks)

    def forward(
        self,
        x: Inputs,
        lengths: Lengths | None = None,
        memories: Sequence[Any] | None = None,
        piece: Piece | None = None,
    ) -> Hidden:
        """Return the outputs of all positions, computed in parallel.

        Args:
            x: The vectors, without position embeddings.
            lengths: The length of each sequence; None is all of it. Outputs at padding are
                undefined. Causal stacks ignore it: padding comes last.
            memories: The memories of the source, which a decoder needs.
            piece: The piece of longer sequences that x is, if other devices have the rest; see
                `Mixer.forward`.

        Raises:
            ValueError: See `check_lengths`.
        """
        if piece is not None:
            self._check_causal()
        start = 0 if piece is None else piece.start
        draw = self.draws.next(start) if self.training else None
        if lengths is not None and not self.causal:
            check_lengths(lengths, *x.shape[:2])
            # 0 times NaN is NaN, in gradients too.
            x = x.where(valid(lengths, x.shape[1]).unsqueeze(-1), 0)
        x = self.positions(x, start=start, draw=draw)
        for block, memory in zip(self.blocks, self._read(memories), strict=True):
            if not self.causal:
                x = self._run(block.bidirectional, x, lengths, draw)
            elif memory is None:
                x = self._run(block, x, draw, piece)
            else:
                x = self._run(block, x, draw, piece, memory)
        return self._normed(x)

    def init_state(self, batch: int, memories: Sequence[Any] | None = None) -> StackState:
        """Return the initial (empty) state, with the device and dtype of the weights.

        Args:
            batch: The number of sequences.
            memories: The memories of the source, which a decoder needs.

        Raises:
            ValueError: The stack sees everything.
        """
        read, weight = self._read(memories), self._weight
        self._check_causal()
        layers = tuple(
            block.init_state(
                batch,
                device=weight.device,
                dtype=weight.dtype,
                capacity=self.positions.max_length or 0,
            )
            for block in self.blocks
        )
        return StackState(0, tuple(map(DecoderState, layers, read)) if self.is_decoder else layers)

    def state_bytes(self, length: int, source_length: int | None = None) -> int:
        """Return the size of one sequence's state after `length` positions, in bytes.

        Args:
            length: The number of positions.
            source_length: The length of the source, of which a decoder's state holds memories.
        """
        dtype = self._weight.dtype
        own = sum(mixer.state_bytes(length, dtype) for mixer in self.mixers)
        assert self.is_decoder == (source_length is not None), "a decoder's state holds its source"
        if source_length is None:
            return own
        return own + sum(
            block.cross.memory_bytes(source_length, dtype) for block in self.decoder_blocks
        )

    def step(
        self, x: InputsOne, state: StackState, *, in_place: bool = False
    ) -> tuple[HiddenOne, StackState]:
        """Return the output of one position of each sequence, and the state that includes it.

        With `in_place`, the given state may be overwritten and must not be used again.
        """
        x = self.positions.step(x, state.position)
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x, layer = block.step(x, layer, in_place=in_place)
            layers.append(layer)
        return self._normed(x), StackState(state.position + 1, tuple(layers))

    def select(self, state: StackState, rows: Rows, sources: Sources | None = None) -> StackState:
        """Return the state of some of the sequences; a row named twice is forked.

        Args:
            state: The state. Left unmodified.
            rows: The sequences.
            sources: Of a decoder, the sources that are kept, in rising order: each is read by as
                many of the rows, one after the other. None gives each row a memory of its own.

        Raises:
            ValueError: The sources are in another order.
        """
        if sources is not None and (sources.diff() <= 0).any():
            raise ValueError(
                f"The sources that are kept are to be in rising order, found {sources.tolist()}."
            )
        more = {} if sources is None else {"sources": sources}
        layers = zip(self.blocks, state.layers, strict=True)
        return StackState(
            state.position, tuple(block.select(layer, rows, **more) for block, layer in layers)
        )

    def prefill(self, x: Inputs, state: StackState | None = None) -> tuple[Hidden, StackState]:
        """Return the outputs of positions that follow `state`, and the state after them.

        In training, they are those of `forward`: with dropout, and their gradients do not reach
        into a state that was detached.
        """
        state = self.init_state(len(x)) if state is None else state
        position = state.position + x.shape[1]
        draw = self.draws.next(int(state.position)) if self.training else None
        x = self.positions(x, start=state.position, draw=draw)
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x, layer = self._run(block.prefill, x, layer, draw)
            layers.append(layer)
        return self._normed(x), StackState(position, tuple(layers))

    def _check_causal(self) -> None:
        if not self.causal:
            raise ValueError(
                "A state was asked for of a stack with causal=False, which has none: each position "
                "sees those after it. Call the stack on whole sequences, or make it causal."
            )

    @property
    def _weight(self) -> Tensor:
        """A weight of a product, of the device and type of what products take."""
        widen = self.blocks[0].feedforward[0]
        assert isinstance(widen, nn.Linear)
        return widen.weight

    def _normed(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch e"]:
        return self.norm(x.to(self.norm.weight.dtype))  # norms may be in a wider type

    def _read(self, memories: Sequence[Any] | None) -> Sequence[Any]:
        """Return what each block reads of a source."""
        if self.is_decoder != (memories is not None):
            raise ValueError(
                "A stack with cross was given no memories of a source. Leave out cross, or give "
                "what `summarize` returns."
                if self.is_decoder
                else "A stack without cross was given memories of a source. Make it with cross."
            )
        return [None] * len(self.blocks) if memories is None else memories

    def _run(self, call: Callable[..., Any], *given: Any) -> Any:
        """Return what a block's call returns, recomputed in the backward pass if that is asked."""
        if self.activation_checkpointing and self.training:
            return checkpoint(call, *given, use_reentrant=False)
        return call(*given)
