"""Layers of heads: what they have in common, and the one around an attention of q, k and v."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from linear_transformers.attention import AttentionFactory, BidirectionalAttention
from linear_transformers.attention.states import POSITION, SEQUENCE, bytes_of, of_rows
from linear_transformers.config.ranges import Size, Taps, check_choice, ranged
from linear_transformers.mixers.base import Mixer
from linear_transformers.mixers.convolution import ShortConvolution
from linear_transformers.ops.pieces import Piece
from linear_transformers.ops.precision import widened
from linear_transformers.ops.rotary import Rotation
from linear_transformers.shapes import Hidden, HiddenOne, Lengths, Rows

GATES = {"silu": F.silu, "sigmoid": torch.sigmoid}
QK_NORMS = ("rms", "l2")
NORM_EPS = 1e-5
UNIT_EPS = 1e-6  # as published: nearly nothing has no direction


class MixerState(NamedTuple):
    """What a layer of heads remembers.

    Attributes:
        past: What its heads remember; in `forward` of a piece, that piece.
        inputs: The last inputs of its short convolution; None if there is none.
        position: The number of positions read so far, on the device if it is captured; None if
            nothing depends on it.
    """

    past: Any
    inputs: Float[Tensor, "b kept channels"] | None = None
    position: int | Int[Tensor, "1"] | None = None


class MultiHead(Mixer[MixerState]):
    """Heads that mix queries, keys and values, all projected from x, into the outputs y.

        q, k, v = x W + b   (each through a short convolution, an activation, norm and rotation)
        y = W_o (norm(mixed heads) * gate(x W_g)) + b_o

    A subclass says how heads mix, by `mix` and `mix_one`. Its constructor makes what mixes, then
    calls `project`.

    Args:
        short_convolution: The width of the convolution over time of queries, keys and values;
            None is none.
        qk_norm: The norm of each query and key: `rms`, with a learned scale (Dehghani et al.,
            2023), `l2`, to length 1, or None.
        rotary: Whether queries and keys are rotated by their positions (Su et al., 2021).
        output_norm: Whether each head's output is scaled to unit root mean square, times a
            learned scale.
        output_gate: The activation of the gate of the heads' outputs: `silu`, `sigmoid`, or
            None, which is no gate.
        low_rank_gate: Whether the gate's projection has the rank of a head's width, and a bias.

    Raises:
        ValueError: A choice is unknown.
    """

    activates: ClassVar[bool] = False  # whether queries, keys and values pass SiLU

    @ranged
    def __init__(
        self,
        *,
        short_convolution: Taps | None = None,
        qk_norm: str | None = None,
        rotary: bool = False,
        output_norm: bool = False,
        output_gate: str | None = None,
        low_rank_gate: bool = False,
    ):
        super().__init__()
        if qk_norm is not None:
            check_choice("qk_norm", qk_norm, QK_NORMS)
        if output_gate is not None:
            check_choice("output_gate", output_gate, GATES)
        self.taps = short_convolution
        self.qk_norm = qk_norm
        self.rotary = rotary
        self.norms_outputs = output_norm
        self.output_gate = output_gate
        self.low_rank_gate = low_rank_gate and output_gate is not None

    def project(
        self,
        model_dim: int,
        num_heads: int,
        *,
        key_dim: int,
        value_dim: int,
        num_key_heads: int,
        shares_keys: bool = False,
        bias: bool = True,
    ) -> None:
        """Make the projections, and the parts between them and the heads that have weights.

        Args:
            model_dim: The width of inputs and outputs, e.
            num_heads: The number of heads, h.
            key_dim: The width of a head's queries and keys, d.
            value_dim: The width of a head's values, m.
            num_key_heads: The number of heads of keys and values.
            shares_keys: Whether queries are their own keys.
            bias: Whether projections have a bias.
        """
        self.num_heads = num_heads
        self.head_dims = (key_dim, value_dim) if shares_keys else (key_dim, key_dim, value_dim)
        heads = (num_heads, *(num_key_heads,) * (len(self.head_dims) - 1))
        self.widths = [n * width for n, width in zip(heads, self.head_dims, strict=True)]
        gate_width = num_heads * value_dim
        beside = gate_width if self.output_gate and not self.low_rank_gate else 0
        self.project_in = nn.Linear(model_dim, sum(self.widths) + beside, bias=bias)
        self.project_out = nn.Linear(num_heads * value_dim, model_dim, bias=bias)
        if self.low_rank_gate:
            self.project_gate = nn.Sequential(
                nn.Linear(model_dim, value_dim, bias=False), nn.Linear(value_dim, gate_width)
            )
        self.convolution = ShortConvolution(sum(self.widths), self.taps) if self.taps else None
        if self.qk_norm == "rms":
            self.q_scale = nn.Parameter(torch.ones(key_dim))
            # Of shared keys checkpoints have one, too, without a use.
            self.k_scale = nn.Parameter(torch.ones(key_dim), requires_grad=not shares_keys)
        self.output_norm = nn.Parameter(torch.ones(value_dim)) if self.norms_outputs else None

    @abstractmethod
    def empty_past(
        self, batch: int, *, device: torch.device | str | None, dtype: torch.dtype, capacity: int
    ) -> Any:
        """Return what the heads remember of nothing."""

    @abstractmethod
    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Hidden, past: Any, rotation: Rotation | None
    ) -> tuple[Tensor, Any]:
        """Return the heads' outputs [b, t, h, m] at all positions, and what they remember.

        Args:
            q: The queries.
            k: The keys.
            v: The values.
            x: The layer's inputs.
            past: What the heads remember of earlier positions; or, where those are on other
                devices, the piece of the sequence that x is.
            rotation: The rotation of the positions, if there is one.
        """

    @abstractmethod
    def mix_one(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        x: HiddenOne,
        past: Any,
        rotation: Rotation | None,
        *,
        in_place: bool,
    ) -> tuple[Tensor, Any]:
        """Return the heads' outputs [b, h, m] at one position, and what they remember."""

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> MixerState:
        past = self.empty_past(batch, device=device, dtype=dtype, capacity=capacity)
        inputs = None
        if self.convolution is not None:
            shape = (batch, self.convolution.width - 1, sum(self.widths))
            inputs = torch.zeros(shape, device=device, dtype=dtype)
        return MixerState(past, inputs, 0 if self.rotary else None)

    def forward(self, x: Hidden, piece: Piece | None = None) -> Hidden:
        if piece is None or not self.divisible:
            return super().forward(x, piece)
        return self.prefill(x, MixerState(piece, position=piece.start))[0]

    def prefill(self, x: Hidden, state: MixerState | None = None) -> tuple[Hidden, MixerState]:
        past, inputs, position = MixerState(None) if state is None else state
        mixed, gate = self._projected(SEQUENCE, x)
        if self.convolution is not None:
            if isinstance(past, Piece):
                inputs = past.last_before(mixed, self.convolution.width - 1)
            mixed, inputs = self.convolution(mixed, inputs)
        position = 0 if position is None else position
        rotation = self._rotation(x, position)
        outputs, past = self.mix(*self._heads(mixed), x, past, rotation)
        after = position + x.shape[1] if self.rotary else None
        return self._output(outputs, gate), MixerState(past, inputs, after)

    def step(
        self, x_i: HiddenOne, state: MixerState, *, in_place: bool = False
    ) -> tuple[HiddenOne, MixerState]:
        past, inputs, position = state
        mixed, gate = self._projected(POSITION, x_i)
        if self.convolution is not None:
            assert inputs is not None
            mixed, inputs = self.convolution.step(mixed, inputs)
        rotation = None if position is None else self._rotation(x_i[:, None], position)
        outputs, past = self.mix_one(*self._heads(mixed), x_i, past, rotation, in_place=in_place)
        after = None if position is None else position + 1
        return self._output(outputs, gate), MixerState(past, inputs, after)

    def select(self, state: MixerState, rows: Rows) -> MixerState:
        inputs = None if state.inputs is None else state.inputs[rows]
        return MixerState(self.select_past(state.past, rows), inputs, state.position)

    def select_past(self, past: Any, rows: Rows) -> Any:
        """Return what the heads of some of the sequences remember."""
        return of_rows(past, rows)

    def _projected(self, axes: tuple[str, ...], x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what is mixed, queries, keys and values side by side, and the gate's inputs."""
        self.check_vectors(axes, x, self.project_in.in_features)
        projected = self.project_in(x)
        if self.output_gate is None:
            return projected, None
        if self.low_rank_gate:
            return projected, self.project_gate(x)
        mixed = sum(self.widths)  # split, whose gradient is one copy: that of slices is several
        return projected.split((mixed, projected.shape[-1] - mixed), -1)

    def _rotation(self, x: Hidden, start: int | Int[Tensor, "1"]) -> Rotation | None:
        """Return the rotation of some positions, where there are rotary ones."""
        if not self.rotary:
            return None
        return Rotation(start + torch.arange(x.shape[1], device=x.device))

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, head by head."""
        if self.activates:
            mixed = F.silu(mixed)
        split = zip(mixed.split(self.widths, -1), self.head_dims, strict=True)
        parts = [part.unflatten(-1, (-1, width)) for part, width in split]
        q, k, v = parts[0], parts[-2], parts[-1]  # of two parts, the first is both query and key
        if self.qk_norm is None:
            return q, k, v
        if self.qk_norm == "l2":
            return _unit(q), _unit(k), v
        return _normed(q, self.q_scale), _normed(k, self.k_scale), v

    def _output(self, outputs: Tensor, gate: Tensor | None) -> Tensor:
        if self.output_norm is not None:
            outputs = _normed(outputs, self.output_norm)
        y = outputs.flatten(-2)
        if gate is not None:
            assert self.output_gate is not None
            y = y * GATES[self.output_gate](gate)
        return self.project_out(y)


class MultiHeadAttention(MultiHead):
    """Heads that attend: any attention of queries, keys and values.

    Args:
        model_dim: The width of inputs and outputs, e.
        num_heads: The number of heads, h; each is e / h wide.
        attention: The constructor of the attention, which takes `num_heads` and `head_dim`.
        **parts: See `MultiHead`. Linear attention has rotary positions in the numerator only.

    Raises:
        ValueError: `model_dim` is not a multiple of `num_heads`, a choice is unknown, or the
            attention's kernel has no rotary positions.
    """

    @ranged
    def __init__(
        self, model_dim: Size, num_heads: Size, *, attention: AttentionFactory, **parts: Any
    ):
        super().__init__(**parts)
        head_dim = whole_heads(model_dim, num_heads)
        # First, so that parameters keep the order that optimizers' states have in checkpoints.
        self.attention: Any = attention(num_heads, head_dim)  # not every one has every form
        self.project(
            model_dim,
            num_heads,
            key_dim=head_dim,
            value_dim=head_dim,
            num_key_heads=self.attention.num_key_heads,
            shares_keys=self.attention.shares_keys,
        )
        kernel = self.attention.kernel
        if self.rotary and self.attention.rotates_features and kernel not in ("auto", "chunkwise"):
            raise ValueError(
                f"kernel={kernel} has no rotary positions. Use kernel=auto, or rotary=false."
            )
        self.constant_state = self.attention.constant_state
        self.exactly_causal = self.attention.exactly_causal
        self.divisible = self.attention.divisible

    @property
    def name(self) -> str:
        return type(self.attention).__name__

    @property
    def is_bidirectional(self) -> bool:
        return isinstance(self.attention, BidirectionalAttention)

    def kernel_on(self, device: torch.device) -> str:
        if self.rotary and self.attention.rotates_features:
            return "chunkwise"
        return self.attention.kernel_on(device)

    def forward(self, x: Hidden, piece: Piece | None = None) -> Hidden:
        if piece is not None:
            return super().forward(x, piece)
        mixed, gate = self._projected(SEQUENCE, x)
        if self.convolution is not None:
            mixed, _ = self.convolution(mixed)
        heads, more = self._rotated(*self._heads(mixed), self._rotation(x, 0))
        return self._output(self.attention(*heads, **more), gate)

    def bidirectional(self, x: Hidden, lengths: Lengths | None = None) -> Hidden:
        mixed, gate = self._projected(SEQUENCE, x)
        if self.convolution is not None:
            mixed = self.convolution.centred(mixed, lengths)
        heads, more = self._rotated(*self._heads(mixed), self._rotation(x, 0))
        return self._output(self.attention.bidirectional(*heads, lengths, **more), gate)

    def empty_past(
        self, batch: int, *, device: torch.device | str | None, dtype: torch.dtype, capacity: int
    ) -> Any:
        return self.attention.init_state(batch, device=device, dtype=dtype, capacity=capacity)

    def state_bytes(self, length: int, dtype: torch.dtype = torch.float32) -> int:
        beside = self.init_state(1, device="meta", dtype=dtype)._replace(past=None)
        return bytes_of(beside) + self.attention.state_bytes(length, dtype)

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Hidden, past: Any, rotation: Rotation | None
    ) -> tuple[Tensor, Any]:
        heads, more = self._rotated(q, k, v, rotation)
        if isinstance(past, Piece):
            past = self.attention.past_before(*heads[1:], past, **more)
        return self.attention.prefill(*heads, past, **more)

    def mix_one(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        x: HiddenOne,
        past: Any,
        rotation: Rotation | None,
        *,
        in_place: bool,
    ) -> tuple[Tensor, Any]:
        heads, more = self._rotated(q, k, v, rotation)
        if in_place and not more:
            return self.attention.step_in_place(*heads, past)
        return self.attention.step(*heads, past, **more)

    def select_past(self, past: Any, rows: Rows) -> Any:
        return self.attention.select(past, rows)

    def _rotated(
        self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Rotation]]:
        """Return queries, keys and values, and what the attention takes besides."""
        if rotation is None:
            return (q, k, v), {}
        if self.attention.rotates_features:
            return (q, k, v), {"rotation": rotation}
        return (rotation(q), rotation(k), v), {}


def whole_heads(model_dim: int, num_heads: int) -> int:
    """Return the width of a head.

    Raises:
        ValueError: `model_dim` is not a multiple of `num_heads`.
    """
    if model_dim % num_heads:
        nearest = num_heads * max(1, round(model_dim / num_heads))
        raise ValueError(
            f"model_dim={model_dim} does not divide into num_heads={num_heads} equal heads. "
            f"The nearest width that does is {nearest}."
        )
    return model_dim // num_heads


def _unit(x: Tensor) -> Tensor:
    (wide,) = widened(x)
    return (wide * (wide.square().sum(-1, keepdim=True) + UNIT_EPS).rsqrt()).to(x.dtype)


def _normed(x: Tensor, scale: Tensor) -> Tensor:
    (wide,) = widened(x)
    return F.rms_norm(wide, wide.shape[-1:], scale.to(wide.dtype), eps=NORM_EPS).to(x.dtype)
