"""One layer of a transformer: mixer and feed-forward, each with its residual and norm."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.config.ranges import Fraction, Size, check_choice, ranged
from linear_transformers.mixers import Mixer, MixerFactory
from linear_transformers.models.dropout import Dropout
from linear_transformers.ops.dropout import Draw
from linear_transformers.ops.pieces import Piece
from linear_transformers.shapes import Hidden, HiddenOne, Lengths, Rows

NORMS = ("post", "pre")
NORM_TYPES = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
NORM_EPS = 1e-5
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "swiglu": nn.SiLU}


def norm_of(norm_type: str, width: int) -> nn.LayerNorm | nn.RMSNorm:
    """Return a norm of vectors: `layer` or `rms` (Zhang and Sennrich, 2019)."""
    return NORM_TYPES[norm_type](width, eps=NORM_EPS)


class Block(nn.Module):
    """Norm(x + Sublayer(x)) twice (post-norm, the paper), or x + Sublayer(Norm(x)).

    Args:
        mixer: The constructor of this layer's mixer.
        model_dim: The width of inputs and outputs, e.
        num_heads: The number of the mixer's heads, h.
        feedforward_dim: The width of the feed-forward part's hidden layer.
        dropout: The dropout rate of both sublayers' outputs and of the hidden layer.
        norm: The place of norms: `post` or `pre`.
        norm_type: The kind of norms: `layer` or `rms`.
        activation: The activation of the hidden layer: `relu`, `gelu`, or `swiglu`, which gates
            it (Shazeer, 2020).

    Raises:
        ValueError: A choice is unknown, or the mixer refuses its sizes.
    """

    @ranged
    def __init__(
        self,
        mixer: MixerFactory,
        *,
        model_dim: Size,
        num_heads: Size,
        feedforward_dim: Size,
        dropout: Fraction,
        norm: str,
        norm_type: str,
        activation: str,
    ):
        super().__init__()
        check_choice("norm", norm, NORMS)
        check_choice("norm_type", norm_type, NORM_TYPES)
        check_choice("activation", activation, ACTIVATIONS)
        self.pre_norm = norm == "pre"
        self.activation = activation
        made = None if isinstance(mixer, nn.Module) else mixer(model_dim, num_heads)
        if not isinstance(made, Mixer):
            given = type(made or mixer).__name__
            raise ValueError(
                f"mixer: a {given} was given. Give what makes a Mixer of a width and a number of "
                "heads: a subclass, or a partial of one with its options."
            )
        self.mixer: Mixer[Any] = made
        self.mixer_norm = norm_of(norm_type, model_dim)
        self.feedforward = nn.Sequential(
            nn.Linear(model_dim, (2 if activation == "swiglu" else 1) * feedforward_dim),
            ACTIVATIONS[activation](),
            Dropout(dropout),
            nn.Linear(feedforward_dim, model_dim),
        )
        self.feedforward_norm = norm_of(norm_type, model_dim)
        self.mixer_dropout = Dropout(dropout)
        self.feedforward_dropout = Dropout(dropout)

    def forward(self, x: Hidden, draw: Draw | None = None, piece: Piece | None = None) -> Hidden:
        """Return the outputs of all positions, computed in parallel.

        Args:
            x: The inputs.
            draw: What masks of dropout are drawn from; None drops nothing.
            piece: See `Mixer.forward`.
        """
        return self._fed(self._mixed(x, self.mixer(self._normed(x), piece), draw), draw)

    def bidirectional(
        self, x: Hidden, lengths: Lengths | None = None, draw: Draw | None = None
    ) -> Hidden:
        """Return the outputs of all positions, each seeing the whole of its sequence."""
        mixed = self.mixer.bidirectional(self._normed(x), lengths)
        return self._fed(self._mixed(x, mixed, draw), draw)

    def init_state(
        self, batch: int, *, device: torch.device, dtype: torch.dtype, capacity: int = 0
    ) -> Any:
        """Return the initial (empty) state of this layer's mixer."""
        return self.mixer.init_state(batch, device=device, dtype=dtype, capacity=capacity)

    def step(self, x_i: HiddenOne, state: Any, *, in_place: bool = False) -> tuple[HiddenOne, Any]:
        """Return one position's output, and the state that includes it.

        With `in_place`, the given state may be overwritten and must not be used again.
        """
        mixed, state = self.mixer.step(self._normed(x_i), state, in_place=in_place)
        return self._fed(self._mixed(x_i, mixed)), state

    def select(self, state: Any, rows: Rows) -> Any:
        """Return the state of some of the sequences; a row named twice is forked."""
        return self.mixer.select(state, rows)

    def prefill(self, x: Hidden, state: Any = None, draw: Draw | None = None) -> tuple[Hidden, Any]:
        """Return the outputs of positions that follow `state`, and the state after them."""
        mixed, state = self.mixer.prefill(self._normed(x), state)
        return self._fed(self._mixed(x, mixed, draw), draw), state

    def _normed(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch e"]:
        return self.mixer_norm(x) if self.pre_norm else x

    def _mixed(
        self,
        x: Float[Tensor, "*batch e"],
        mixed: Float[Tensor, "*batch e"],
        draw: Draw | None = None,
    ) -> Float[Tensor, "*batch e"]:
        """Return the first sublayer's output, from its input and the mixer's output."""
        x = self.mixer_dropout(mixed, draw, residual=x)
        return x if self.pre_norm else self.mixer_norm(x)

    def _fed(
        self, x: Float[Tensor, "*batch e"], draw: Draw | None = None
    ) -> Float[Tensor, "*batch e"]:
        """Return the feed-forward sublayer's output."""
        widen, function, dropout, narrow = self.feedforward
        hidden = widen(self.feedforward_norm(x) if self.pre_norm else x)
        if self.activation == "swiglu":
            hidden, gate = hidden.chunk(2, dim=-1)
            hidden = dropout(hidden * function(gate), draw)
        else:
            hidden = dropout(hidden, draw, after=function)
        x = self.feedforward_dropout(narrow(hidden), draw, residual=x)
        return x if self.pre_norm else self.feedforward_norm(x)
