"""The image model of Katharopoulos et al. (2020), section 4.2: every value given those before.

The model reads tokens: the start token, then the values. Its output at a position are the
parameters of the distribution of the *next* value, so the first value is modelled too.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from linear_transformers.attention import AttentionFactory
from linear_transformers.models.block import Block
from linear_transformers.models.embedding import TokenEmbedding
from linear_transformers.ops.precision import without_autocast
from linear_transformers.shapes import Rows, Tokens, TokensOne


class ModelState(NamedTuple):
    """How many tokens were read, and what each layer remembers of them."""

    position: int
    layers: tuple[Any, ...]


class AutoregressiveTransformer(nn.Module):
    """Tokens in, parameters of the next value's distribution out.

    Args:
        attention: Makes the attention of each layer.
        num_values: How many values there are; the start token comes on top.
        max_length: The longest sequence of values.
        num_parameters: p, the width of the output.
        num_layers: Blocks.
        num_heads: h, a divisor of `model_dim`.
        model_dim: e.
        feedforward_dim: Width of the blocks' hidden layer; None is 4 e, the paper's.
        dropout: In embedding and blocks.
        positions: See `TokenEmbedding`.
        norm: `post` (the paper) or `pre`.
        activation: `relu` (the paper) or `gelu`.
        activation_checkpointing: Recompute blocks in the backward pass instead of storing
            their activations: less memory, about a third more time.

    Raises:
        ValueError: See `Block` and `TokenEmbedding`.
    """

    blocks: Sequence[Block]

    def __init__(
        self,
        attention: AttentionFactory,
        *,
        num_values: int,
        max_length: int,
        num_parameters: int,
        num_layers: int,
        num_heads: int,
        model_dim: int,
        feedforward_dim: int | None = None,
        dropout: float = 0.1,
        positions: str = "concatenated",
        norm: str = "post",
        activation: str = "relu",
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
        self.start_token = num_values
        self.max_length = max_length
        self.activation_checkpointing = activation_checkpointing
        self.embedding = TokenEmbedding(
            num_values + 1, model_dim, max_length, positions=positions, dropout=dropout
        )
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
        # Post-norm blocks end normalised; the last norm is for the sum that pre-norm leaves.
        self.norm = nn.LayerNorm(model_dim)
        self.head = nn.Linear(model_dim, num_parameters)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    def with_start(self, values: Tokens) -> Int[Tensor, "b t+1"]:
        """The tokens that stand before values: the start token in front."""
        return nn.functional.pad(values, (1, 0), value=self.start_token)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b t p"]:
        """Every position at once. To train on values, give `with_start(values)[:, :-1]`."""
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self._predict(x)

    def init_state(self, batch: int) -> ModelState:
        """Nothing read yet, not even the start token. On the model's device, in its type."""
        weight = self.embedding.tokens.weight  # the head may be kept wider
        return ModelState(
            position=0,
            layers=tuple(
                block.init_state(
                    batch, device=weight.device, dtype=weight.dtype, capacity=self.max_length
                )
                for block in self.blocks
            ),
        )

    def step(self, token: TokensOne, state: ModelState) -> tuple[Float[Tensor, "b p"], ModelState]:
        """Read one token a sequence; the parameters of the value that follows it."""
        x = self.embedding.step(token, state.position)
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x, layer = block.step(x, layer)
            layers.append(layer)
        return self._predict(x), ModelState(state.position + 1, tuple(layers))

    def select(self, state: ModelState, rows: Rows) -> ModelState:
        """The state of some of the sequences; a row that is named twice is forked."""
        layers = zip(self.blocks, state.layers, strict=True)
        return ModelState(
            state.position, tuple(block.select(layer, rows) for block, layer in layers)
        )

    def prefill(
        self, tokens: Tokens, state: ModelState | None = None
    ) -> tuple[Float[Tensor, "b t p"], ModelState]:
        """Read a whole stretch in parallel, after `state` if there is one."""
        state = self.init_state(len(tokens)) if state is None else state
        x = self.embedding(tokens, start=state.position)
        layers = []
        for block, layer in zip(self.blocks, state.layers, strict=True):
            x, layer = block.prefill(x, layer)
            layers.append(layer)
        position = state.position + tokens.shape[1]
        return self._predict(x), ModelState(position, tuple(layers))

    def _predict(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch p"]:
        # Without autocast: means in bf16 are coarser than the gap between 256 levels.
        with without_autocast(x):
            return self.head(self.norm(x.to(self.head.weight.dtype)))
