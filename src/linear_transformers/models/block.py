"""One layer of a transformer: attention and feed-forward, each with its residual and norm."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.attention import AttentionFactory
from linear_transformers.config.ranges import Fraction, Size, ranged
from linear_transformers.models.dropout import Dropout
from linear_transformers.ops.dropout import Draw
from linear_transformers.shapes import Hidden, HiddenOne, Lengths, Rows

NORMS = ("post", "pre")
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}


class Block(nn.Module):
    """LayerNorm(x + Sublayer(x)) twice (post-norm, the paper), or x + Sublayer(LayerNorm(x)).

    Args:
        attention: The constructor of this layer's attention.
        model_dim: The width of inputs and outputs, e.
        num_heads: The number of heads, h; each is e/h wide.
        feedforward_dim: The width of the feed-forward part's hidden layer.
        dropout: The dropout rate of both sublayers' outputs and of the hidden layer.
        norm: The place of layer norms: `post` or `pre`.
        activation: The activation of the hidden layer: `relu` or `gelu`.

    Raises:
        ValueError: `model_dim` is not a multiple of `num_heads`, or a choice is unknown.
    """

    @ranged
    def __init__(
        self,
        attention: AttentionFactory,
        *,
        model_dim: Size,
        num_heads: Size,
        feedforward_dim: Size,
        dropout: Fraction,
        norm: str,
        activation: str,
    ):
        super().__init__()
        if model_dim % num_heads:
            nearest = num_heads * max(1, round(model_dim / num_heads))
            raise ValueError(
                f"model_dim={model_dim} does not divide into num_heads={num_heads} equal heads. "
                f"The nearest width that does is {nearest}."
            )
        if norm not in NORMS:
            raise ValueError(f"norm={norm} is unknown. Choose one of {list(NORMS)}.")
        if activation not in ACTIVATIONS:
            choices = list(ACTIVATIONS)
            raise ValueError(f"activation={activation} is unknown. Choose one of {choices}.")
        self.pre_norm = norm == "pre"
        self.heads = (num_heads, model_dim // num_heads)
        # Any: not every attention has every form.
        self.attention: Any = attention(*self.heads)
        self.project_in = nn.Linear(model_dim, (2 if self.attention.shares_keys else 3) * model_dim)
        self.project_out = nn.Linear(model_dim, model_dim)
        self.attention_norm = nn.LayerNorm(model_dim)
        self.feedforward = nn.Sequential(
            nn.Linear(model_dim, feedforward_dim),
            ACTIVATIONS[activation](),
            Dropout(dropout),
            nn.Linear(feedforward_dim, model_dim),
        )
        self.feedforward_norm = nn.LayerNorm(model_dim)
        self.attention_dropout = Dropout(dropout)
        self.feedforward_dropout = Dropout(dropout)

    def forward(self, x: Hidden, draw: Draw | None = None) -> Hidden:
        """Return the outputs of all positions, computed in parallel.

        Args:
            x: The inputs.
            draw: What masks of dropout are drawn from; None drops nothing.
        """
        return self._after_attention(x, self.attention(*self._queries_keys_values(x)), draw)

    def bidirectional(
        self, x: Hidden, lengths: Lengths | None = None, draw: Draw | None = None
    ) -> Hidden:
        """Return the outputs of all positions, each seeing the whole of its sequence."""
        attended = self.attention.bidirectional(*self._queries_keys_values(x), lengths)
        return self._after_attention(x, attended, draw)

    def init_state(
        self, batch: int, *, device: torch.device, dtype: torch.dtype, capacity: int = 0
    ) -> Any:
        """Return the initial (empty) state of this layer's attention."""
        return self.attention.init_state(batch, device=device, dtype=dtype, capacity=capacity)

    def step(self, x_i: HiddenOne, state: Any, *, in_place: bool = False) -> tuple[HiddenOne, Any]:
        """Return one position's output, and the state that includes it; see `step_in_place`."""
        step = self.attention.step_in_place if in_place else self.attention.step
        attended, state = step(*self._queries_keys_values(x_i), state)
        return self._after_attention(x_i, attended), state

    def select(self, state: Any, rows: Rows) -> Any:
        """Return the state of some of the sequences; a row named twice is forked."""
        return self.attention.select(state, rows)

    def prefill(self, x: Hidden, state: Any = None) -> tuple[Hidden, Any]:
        """Return the outputs of positions that follow `state`, and the state after them."""
        attended, state = self.attention.prefill(*self._queries_keys_values(x), state)
        return self._after_attention(x, attended), state

    def _queries_keys_values(self, x: Float[Tensor, "*batch e"]) -> tuple[Tensor, Tensor, Tensor]:
        x = self.attention_norm(x) if self.pre_norm else x
        parts = self.project_in(x).unflatten(-1, (-1, *self.heads)).unbind(-3)
        return parts[0], parts[-2], parts[-1]  # of two parts, the first is both query and key

    def _after_attention(
        self,
        x: Float[Tensor, "*batch e"],
        attended: Float[Tensor, "*batch h m"],
        draw: Draw | None = None,
    ) -> Float[Tensor, "*batch e"]:
        attended = self.project_out(attended.flatten(-2))
        x = self.attention_dropout(attended, draw, residual=x)
        if self.pre_norm:
            changed = self._feedforward(self.feedforward_norm(x), draw)
            return self.feedforward_dropout(changed, draw, residual=x)
        x = self.attention_norm(x)
        changed = self._feedforward(x, draw)
        return self.feedforward_norm(self.feedforward_dropout(changed, draw, residual=x))

    def _feedforward(
        self, x: Float[Tensor, "*batch e"], draw: Draw | None
    ) -> Float[Tensor, "*batch e"]:
        widen, activation, dropout, narrow = self.feedforward
        return narrow(dropout(widen(x), draw, after=activation))
