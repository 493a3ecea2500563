"""Heads whose memory is a matrix that forgets or corrects itself, by gates computed from x.

The layers as their papers have them. "Fast weights" is the oldest name of such recurrences
(Schmidhuber, 1992).
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.attention.states import check_past
from linear_transformers.config.ranges import Positive, Size, Taps, ranged
from linear_transformers.kernels.fast_weights import decayed, delta, kernel_on
from linear_transformers.mixers.multi_head import MultiHead, whole_heads
from linear_transformers.ops.decayed import decayed_over_piece, decayed_step
from linear_transformers.ops.delta import delta_over_piece, delta_step
from linear_transformers.ops.groups import check_groups, for_group, one_of_group
from linear_transformers.ops.pieces import Piece
from linear_transformers.ops.precision import accumulation_dtype, widened, without_autocast
from linear_transformers.ops.rotary import Rotation
from linear_transformers.shapes import Hidden, HiddenOne

# The fastest decay of a feature, in logs: half a chunk of so many positions stays within float32.
FASTEST, FINE_CHUNK = -5.0, 32
FineChunk = Annotated[int, Ge(1), Le(FINE_CHUNK)]


class FastWeights(MultiHead):
    """Heads whose memory is a matrix S, read by queries: o = S^T q / sqrt(d).

    There is no denominator: the norm of the heads' outputs bounds them instead. Projections have
    no bias.

    Args:
        model_dim: The width of inputs and outputs, e.
        num_heads: The number of heads, h.
        expand_k: The width of all heads' keys, as a multiple of e.
        expand_v: The width of all heads' values, as a multiple of e.
        chunk_size: The positions of a chunk, where there is no kernel for the recurrence as it
            stands. Only speed depends on it.
        num_key_heads: The number of heads of keys and values, a divisor of h: each is shared by
            the queries of a group of heads (Ainslie et al., 2023), and so are its gates and its
            memory. None is h.
        output_norm: See `MultiHead`.
        **parts: See `MultiHead`.

    Raises:
        ValueError: A width does not divide into the heads, or a choice is unknown.
    """

    constant_state = True
    divisible = True
    free_options: ClassVar[frozenset[str]] = frozenset({"chunk_size"})
    over_sequence: Callable[..., tuple[Tensor, Tensor]]
    over_position: ClassVar[Callable[..., tuple[Tensor, Tensor]]]
    over_piece: ClassVar[Callable[..., tuple[Tensor, Tensor]]]
    chunk_size: int

    @ranged
    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        expand_k: Positive = 1.0,
        expand_v: Positive = 1.0,
        chunk_size: Size = 32,
        num_key_heads: Size | None = None,
        output_norm: bool = True,
        **parts: Any,
    ):
        super().__init__(output_norm=output_norm, **parts)
        self.chunk_size = chunk_size
        self.key_dim = _head_dim("expand_k", expand_k, model_dim, num_heads)
        self.value_dim = _head_dim("expand_v", expand_v, model_dim, num_heads)
        self.num_key_heads = num_heads if num_key_heads is None else num_key_heads
        self.group = check_groups(num_heads, self.num_key_heads)
        self._sizes = self.num_key_heads, self.key_dim, self.value_dim  # of a sequence's matrices
        self.project(
            model_dim,
            num_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            num_key_heads=self.num_key_heads,
            bias=False,
        )

    def kernel_on(self, device: torch.device) -> str:
        return kernel_on(device, max(self.key_dim, self.value_dim))

    @abstractmethod
    def gates(self, x: Float[Tensor, "*batch e"]) -> tuple[Float[Tensor, "*batch k gates"], ...]:
        """Return what the operator takes besides queries, for each head of keys and values."""

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Hidden, past: Any, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor]:
        inputs = self._operands(q, k, v, x, rotation)
        with without_autocast(v):
            if isinstance(past, Piece):
                past = past.state_before(*self.over_piece(*inputs[1:]))
            elif past is not None:
                check_past(x, past, *self._sizes)
                past = for_group(past, self.group, dim=1)
            outputs, past = self.over_sequence(*inputs, state=past, chunk_size=self.chunk_size)
            return outputs, one_of_group(past, self.group)

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
    ) -> tuple[Tensor, Tensor]:
        check_past(x, past, *self._sizes)
        inputs = self._operands(q, k, v, x, rotation)
        with without_autocast(v):
            output, past = self.over_position(*inputs, for_group(past, self.group, dim=1))
            return output, one_of_group(past, self.group)

    def empty_past(
        self, batch: int, *, device: torch.device | str | None, dtype: torch.dtype, capacity: int
    ) -> Float[Tensor, "b k d m"]:
        shape = (batch, *self._sizes)
        return torch.zeros(shape, device=device, dtype=accumulation_dtype(dtype))

    def _operands(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, rotation: Rotation | None
    ) -> tuple[Tensor, ...]:
        """Return the operator's inputs: queries rotated and scaled, keys, values and gates."""
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        q, k, *gates = widened(q, k, *self.gates(x))
        k, v, *gates = (for_group(each, self.group, dim=-2) for each in (k, v, *gates))
        return q * self.key_dim**-0.5, k, v, *gates


class MultiScaleRetention(FastWeights):
    """Retention with a decay of each head's own, a norm and a gate: RetNet.

        S_i = a S_(i-1) + k_i v_i^T    with a = 1 - 2^(-5 - h) for head h = 0, 1, ...

    Sun et al. (2023), eqs. 5 to 8; queries and keys are rotated, which is their xPos. Their group
    norm of each head is an RMS norm, as in their code.

    Args:
        model_dim: See `FastWeights`.
        num_heads: See `FastWeights`.
        expand_v: See `FastWeights`.
        rotary: See `MultiHead`.
        output_gate: See `MultiHead`.
        **parts: See `FastWeights` and `MultiHead`.
    """

    over_sequence = staticmethod(decayed)
    over_position = staticmethod(decayed_step)
    over_piece = staticmethod(decayed_over_piece)

    @ranged
    def __init__(
        self,
        model_dim: Size,
        num_heads: Size,
        *,
        expand_v: Positive = 2.0,
        rotary: bool = True,
        output_gate: str | None = "silu",
        **parts: Any,
    ):
        parts |= {"expand_v": expand_v, "rotary": rotary, "output_gate": output_gate}
        super().__init__(model_dim, num_heads, **parts)

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        head = torch.arange(self.num_key_heads, device=x.device, dtype=accumulation_dtype(x.dtype))
        log_decay = torch.log1p(-torch.exp2(-5 - head)).unsqueeze(-1)
        return (log_decay.expand(*x.shape[:-1], self.num_key_heads, 1),)


class GatedLinearAttention(FastWeights):
    """Gated linear attention: a decay of each feature and position, computed from x.

        S_i = diag(a_i) S_(i-1) + k_i v_i^T    with a_i = sigmoid(x_i W_1 W_2 + b)^(1/16)

    Yang et al. (2024), section 4.3, with a norm and a gate of the heads' outputs. No decay is below
    e^-5, so that chunks stay within float32.

    Args:
        model_dim: See `FastWeights`.
        num_heads: See `FastWeights`.
        expand_k: See `FastWeights`.
        decay_rank: The rank of the decays' projection.
        output_gate: See `MultiHead`.
        chunk_size: See `FastWeights`.
        **parts: See `FastWeights` and `MultiHead`.
    """

    over_sequence = staticmethod(decayed)
    over_position = staticmethod(decayed_step)
    over_piece = staticmethod(decayed_over_piece)

    @ranged
    def __init__(
        self,
        model_dim: Size,
        num_heads: Size,
        *,
        expand_k: Positive = 0.5,
        decay_rank: Size = 16,
        output_gate: str | None = "silu",
        chunk_size: FineChunk = FINE_CHUNK,
        **parts: Any,
    ):
        parts |= {"expand_k": expand_k, "output_gate": output_gate, "chunk_size": chunk_size}
        super().__init__(model_dim, num_heads, **parts)
        self.decay = nn.Sequential(
            nn.Linear(model_dim, decay_rank, bias=False),
            nn.Linear(decay_rank, self.num_key_heads * self.key_dim),
        )

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        (logits,) = widened(self.decay(x).unflatten(-1, (-1, self.key_dim)))
        return ((F.logsigmoid(logits) / 16).clamp(min=FASTEST),)


class DeltaNet(FastWeights):
    """The delta rule: a key corrects the value that it recalls.

        S_i = (I - b_i k_i k_i^T) S_(i-1) + b_i k_i v_i^T    with b_i = sigmoid(x_i W)

    Yang et al. (2024, "Parallelizing Linear Transformers with the Delta Rule"), section 3:
    queries, keys and values pass a short convolution and SiLU; queries and keys have length 1.

    Args:
        model_dim: See `FastWeights`.
        num_heads: See `FastWeights`.
        short_convolution: See `MultiHead`.
        qk_norm: See `MultiHead`; no other norm keeps the memory bounded.
        **parts: See `FastWeights` and `MultiHead`.

    Raises:
        ValueError: The norm is another; see `FastWeights`.
    """

    over_sequence = staticmethod(delta)
    over_position = staticmethod(delta_step)
    over_piece = staticmethod(delta_over_piece)
    activates: ClassVar[bool] = True

    @ranged
    def __init__(
        self,
        model_dim: Size,
        num_heads: Size,
        *,
        short_convolution: Taps | None = 4,
        qk_norm: str | None = "l2",
        **parts: Any,
    ):
        if qk_norm != "l2":
            raise ValueError(
                f"qk_norm={qk_norm} was asked for; with keys longer than 1, what the delta rule "
                "corrects grows without bound. Use qk_norm=l2."
            )
        parts |= {"short_convolution": short_convolution, "qk_norm": qk_norm}
        super().__init__(model_dim, num_heads, **parts)
        self.strength = nn.Linear(model_dim, self.num_key_heads, bias=False)

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        (logits,) = widened(self.strength(x).unsqueeze(-1))
        return logits.sigmoid(), torch.zeros_like(logits)


class GatedDeltaNet(DeltaNet):
    """The delta rule with a decay of each head: S_(i-1) is first multiplied by a_i.

        log a_i = -exp(A) softplus(x_i W + t)

    Yang, Kautz and Hatamizadeh (2025), eq. 10 and section 3.4; A and t are learned for each head.

    Args:
        model_dim: See `FastWeights`.
        num_heads: See `FastWeights`.
        expand_k: See `FastWeights`.
        expand_v: See `FastWeights`.
        output_gate: See `MultiHead`.
        **options: See `DeltaNet`.
    """

    @ranged
    def __init__(
        self,
        model_dim: Size,
        num_heads: Size,
        *,
        expand_k: Positive = 0.75,
        expand_v: Positive = 1.5,
        output_gate: str | None = "silu",
        **options: Any,
    ):
        options |= {"expand_k": expand_k, "expand_v": expand_v, "output_gate": output_gate}
        super().__init__(model_dim, num_heads, **options)
        heads = self.num_key_heads
        self.decay = Decay(nn.Linear(model_dim, heads, bias=False), heads, 1)

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        strength, _ = super().gates(x)
        return strength, self.decay(x)


class KimiDeltaAttention(DeltaNet):
    """The delta rule with a decay of each feature: gated DeltaNet and GLA in one.

    Kimi Team (2025, "Kimi Linear"), eq. 1 and section 3. The projections of decays and of the gate
    have the rank of a head's width. No decay is below e^-5, so that chunks stay within float32.

    Args:
        model_dim: See `FastWeights`.
        num_heads: See `FastWeights`.
        output_gate: See `MultiHead`.
        low_rank_gate: See `MultiHead`.
        chunk_size: See `FastWeights`.
        **options: See `DeltaNet`.
    """

    @ranged
    def __init__(
        self,
        model_dim: Size,
        num_heads: Size,
        *,
        output_gate: str | None = "sigmoid",
        low_rank_gate: bool = True,
        chunk_size: FineChunk = FINE_CHUNK,
        **options: Any,
    ):
        options |= {"output_gate": output_gate, "low_rank_gate": low_rank_gate}
        options |= {"chunk_size": chunk_size}
        super().__init__(model_dim, num_heads, **options)
        rank, width = self.value_dim, self.num_key_heads * self.key_dim
        projection = nn.Sequential(
            nn.Linear(model_dim, rank, bias=False), nn.Linear(rank, width, bias=False)
        )
        self.decay = Decay(projection, self.num_key_heads, self.key_dim)

    def gates(self, x: Tensor) -> tuple[Tensor, ...]:
        strength, _ = super().gates(x)
        return strength, self.decay(x).clamp(min=FASTEST)


class Decay(nn.Module):
    """The logarithms of decays: -exp(A) softplus(project(x) + t), as in Mamba (Dao and Gu, 2024).

    Args:
        project: From x to one number for each decay.
        num_heads: The number of heads, each with an A of its own.
        width: The number of decays of a head, each with a t of its own.
    """

    def __init__(self, project: nn.Module, num_heads: int, width: int):
        super().__init__()
        self.project = project
        self.log_rate = nn.Parameter(torch.empty(num_heads, 1).uniform_(1, 16).log())
        # softplus(t) is log-uniform from 0.001 to 0.1.
        start = torch.empty(num_heads, width).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.bias = nn.Parameter(start + torch.log(-torch.expm1(-start)))

    def forward(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch h width"]:
        logits, log_rate, bias = widened(
            self.project(x).unflatten(-1, self.bias.shape), self.log_rate, self.bias
        )
        return -log_rate.exp() * F.softplus(logits + bias)


def _head_dim(name: str, expand: float, model_dim: int, num_heads: int) -> int:
    if expand == 1:
        return whole_heads(model_dim, num_heads)
    width = expand * model_dim / num_heads
    if width < 1 or not width.is_integer():
        least = (num_heads / Fraction(expand).limit_denominator()).numerator
        nearest = least * max(1, round(model_dim / least))
        raise ValueError(
            f"{name}={expand:g} times model_dim={model_dim} does not divide into "
            f"num_heads={num_heads} equal heads of whole numbers. The nearest width that does is "
            f"{nearest}."
        )
    return int(width)
