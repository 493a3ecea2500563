"""A stack of blocks, vectors to vectors: what every model of this project is made of."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from linear_transformers.attention import AttentionFactory, BidirectionalAttention
from linear_transformers.models.block import Block
from linear_transformers.models.positions import Positions
from linear_transformers.shapes import Hidden, HiddenOne, Lengths, Rows

Inputs = Float[Tensor, "b t i"]
InputsOne = Float[Tensor, "b i"]


class StackState(NamedTuple):
    """How many positions were read, and what each layer remembers of them.

    A captured graph counts on its device: there the position is a tensor of one number.
    """

    position: int | Int[Tensor, "1"]
    layers: tuple[Any, ...]


class Transformer(nn.Module):
    """Positions, blocks, and a last norm.

    Causal, it keeps attention's contract: `forward`, `init_state`, `step`, `prefill`. Not
    causal, as an encoder, it has `forward` only, and every position sees all of its sequence.

    Args:
        attention: Makes the attention of each layer.
        max_length: The longest sequence; None is no bound.
        num_layers: Blocks.
        num_heads: h, a divisor of `model_dim`.
        model_dim: e.
        feedforward_dim: Width of the blocks' hidden layer; None is 4 e, the paper's.
        dropout: Where positions are added, and in blocks.
        positions: See `Positions`.
        norm: `post` (the paper) or `pre`.
        activation: `relu` (the paper) or `gelu`.
        causal: Whether a position sees itself and those before it only.
        activation_checkpointing: Recompute blocks in the backward pass instead of storing
            their activations: less memory, about a third more time.

    Attributes:
        input_dim: i, the width of its inputs.
        model_dim: e, the width of its outputs.

    Raises:
        ValueError: See `Block` and `Positions`; or the attention has no form that sees
            everything, and is to.
    """

    free_options: ClassVar[frozenset[str]] = frozenset({"dropout", "activation_checkpointing"})
    blocks: Sequence[Block]

    def __init__(
        self,
        attention: AttentionFactory,
        max_length: int | None = None,
        *,
        num_layers: int,
        num_heads: int,
        model_dim: int,
        feedforward_dim: int | None = None,
        dropout: float = 0.1,
        positions: str = "concatenated",
        norm: str = "post",
        activation: str = "relu",
        causal: bool = True,
        activation_checkpointing: bool = False,
    ):
        super().__init__()
        feedforward_dim = 4 * model_dim if feedforward_dim is None else feedforward_dim
        for name, size in (
            ("num_layers", num_layers),
            ("model_dim", model_dim),
            ("feedforward_dim", feedforward_dim),
        ):
            if size < 1:
                raise ValueError(f"{name}={size} was asked for; it must be at least 1.")
        self.causal = causal
        self.activation_checkpointing = activation_checkpointing
        self.model_dim = model_dim
        self.positions = Positions(
            model_dim, kind=positions, max_length=max_length, dropout=dropout
        )
        self.input_dim = self.positions.input_dim
        self.blocks = nn.ModuleList(  # pyright: ignore[reportAttributeAccessIssue]
            Block(
                attention,
                model_dim=model_dim,
                num_heads=num_heads,
                feedforward_dim=feedforward_dim,
                dropout=dropout,
                norm=norm,
                activation=activation,
            )
            for _ in range(num_layers)
        )
        if not causal and not isinstance(self.attention, BidirectionalAttention):
            raise ValueError(
                f"{type(self.attention).__name__} has no form that sees everything. Use "
                "model.causal=true, or one that has: README's table of attention says which."
            )
        # Post-norm blocks end normalised; the last norm is for the sum that pre-norm leaves.
        self.norm = nn.LayerNorm(model_dim)

    @property
    def attention(self) -> Any:
        """That of the first layer; all are of one kind."""
        return self.blocks[0].attention

    @property
    def description(self) -> str:
        """For the run's log."""
        return f"{len(self.blocks)} layers of {type(self.attention).__name__}"

    def kernel_on(self, device: torch.device) -> str:
        """Which implementation of attention trains there, for the run's log."""
        return self.attention.kernel_on(device) if self.causal else "bidirectional"

    def forward(self, x: Inputs, lengths: Lengths | None = None) -> Hidden:
        """Every position at once.

        Args:
            x: Vectors without positions.
            lengths: How many positions each sequence has; None is all. Outputs at padding
                mean nothing. Causal stacks need none: padding comes after all that counts.
        """
        x = self.positions(x)
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                x = checkpoint(self._through, block, x, lengths, use_reentrant=False)
            else:
                x = self._through(block, x, lengths)
        return self._normed(x)

    def init_state(self, batch: int) -> StackState:
        """Nothing read yet. On the weights' device, in their type."""
        weight = self.blocks[0].project_in.weight
        return StackState(
            position=0,
            layers=tuple(
                block.init_state(
                    batch,
                    device=weight.device,
                    dtype=weight.dtype,
                    capacity=self.positions.max_length or 0,
                )
                for block in self.blocks
            ),
        )

    def state_bytes(self, length: int) -> int:
        """What is remembered of one sequence after `length` positions, in bytes."""
        return sum(block.attention.state_bytes(length) for block in self.blocks)

    def step(
        self, x: InputsOne, state: StackState, *, in_place: bool = False
    ) -> tuple[HiddenOne, StackState]:
        """One position of each sequence. In place, the state that is given must not be used
        again: it may have become the one that is returned."""
        x = self.positions.step(x, state.position)
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x, layer = block.step(x, layer, in_place=in_place)
            layers.append(layer)
        return self._normed(x), StackState(state.position + 1, tuple(layers))

    def select(self, state: StackState, rows: Rows) -> StackState:
        """The state of some of the sequences; a row that is named twice is forked."""
        layers = zip(self.blocks, state.layers, strict=True)
        return StackState(
            state.position, tuple(block.select(layer, rows) for block, layer in layers)
        )

    def prefill(self, x: Inputs, state: StackState | None = None) -> tuple[Hidden, StackState]:
        """A whole stretch in parallel, after `state` if there is one."""
        state = self.init_state(len(x)) if state is None else state
        assert isinstance(state.position, int)
        position = state.position + x.shape[1]
        x = self.positions(x, start=state.position)
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x, layer = block.prefill(x, layer)
            layers.append(layer)
        return self._normed(x), StackState(position, tuple(layers))

    def _normed(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch e"]:
        return self.norm(x.to(self.norm.weight.dtype))  # which may be kept wider

    def _through(self, block: Block, x: Tensor, lengths: Tensor | None) -> Tensor:
        return block(x) if self.causal else block.bidirectional(x, lengths)
