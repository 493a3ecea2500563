"""Recurrences whose gates are computed from keys: for checkpoints from before there were mixers.

The published layers compute gates from their input: they are `mixers`. A key is a projection of it,
and all that an attention of queries, keys and values is given. No model of `conf/` names these
classes; a checkpoint's configuration may.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers import shapes as sh
from linear_transformers.attention.base import CausalAttention
from linear_transformers.attention.states import POSITION, check_past
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.kernels.fast_weights import decayed, delta, kernel_on
from linear_transformers.ops.decayed import decayed_step
from linear_transformers.ops.delta import delta_step
from linear_transformers.ops.precision import accumulation_dtype, widened, without_autocast

# The fastest decay, in logs: a chunk of 16 positions then stays within float32.
FASTEST = -5.0
MatrixState = Float[Tensor, "b h c m"]


class FastWeightAttention(CausalAttention[Tensor]):
    """The state is S, and the output S^T q scaled to unit root mean square, times a weight.

    There is no denominator: attention weights do not sum to one and may be negative. The norm
    bounds the outputs instead.
    """

    constant_state = True
    weights_sum_to_one: ClassVar[bool] = False
    over_sequence: ClassVar[Callable[..., tuple[Tensor, Tensor]]]
    over_position: ClassVar[Callable[..., tuple[Tensor, Tensor]]]
    chunk_size: int

    def __init__(self, num_heads: int, head_dim: int):
        super().__init__(num_heads, head_dim)
        self.norm = nn.Parameter(torch.ones(head_dim))
        self._sizes = num_heads, head_dim, head_dim  # of a sequence's state

    def kernel_on(self, device: torch.device) -> str:
        return kernel_on(device, self.head_dim)

    @abstractmethod
    def prepare(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """Return the operator's inputs, given queries, keys and values [*batch, h, d], widened."""

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> MatrixState:
        return torch.zeros((batch, *self._sizes), device=device, dtype=accumulation_dtype(dtype))

    def step(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: MatrixState
    ) -> tuple[sh.Output, Any]:
        self.check_heads(POSITION, q_i, k_i, v_i)
        check_past(q_i, state, *self._sizes)
        with without_autocast(v_i):
            inputs = self.prepare(*widened(q_i, k_i, v_i))
            output, state = self.over_position(*inputs, state)
            return self._normed(output, v_i.dtype), state

    def prefill(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, state: Any = None
    ) -> tuple[sh.Outputs, MatrixState]:
        self.check(q, k, v)
        if state is not None:
            check_past(q, state, *self._sizes)
        with without_autocast(v):
            inputs = self.prepare(*widened(q, k, v))
            outputs, state = self.over_sequence(*inputs, state=state, chunk_size=self.chunk_size)
            return self._normed(outputs, v.dtype), state

    def _normed(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.norm.to(x.dtype), eps=1e-5).to(dtype)


class KeyGate(nn.Module):
    """A linear gate of each key: how much to forget, or how much to correct.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of a key, d.
        width: The number of gates of a key.
        bias: The initial bias.
    """

    def __init__(self, num_heads: int, head_dim: int, width: int, *, bias: float):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_heads, head_dim, width) * head_dim**-0.5)
        self.bias = nn.Parameter(torch.full((num_heads, width), bias))

    def forward(self, k: Float[Tensor, "*batch h d"]) -> Float[Tensor, "*batch h width"]:
        product = torch.einsum("...hd,hdw->...hw", k, self.weight.to(k.dtype))
        return product + self.bias.to(k.dtype)


class RetentionAttention(FastWeightAttention):
    """S_i = a S_(i-1) + k_i v_i^T with a = 1 - 2^(-5 - h) for head h = 0, 1, ...

    Costs O(t (l + d) d) for t positions in chunks of l; the state is d by d a head.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        chunk_size: The positions of a chunk, l. Only speed depends on it.
    """

    over_sequence = staticmethod(decayed)
    over_position = staticmethod(decayed_step)

    @ranged
    def __init__(self, num_heads: int, head_dim: int, *, chunk_size: Size = 64):
        super().__init__(num_heads, head_dim)
        self.chunk_size = chunk_size

    def prepare(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        head = torch.arange(self.num_heads, device=q.device, dtype=q.dtype)
        log_decay = torch.log1p(-torch.exp2(-5 - head)).unsqueeze(-1).expand(*q.shape[:-1], 1)
        return q, k * self.head_dim**-0.5, v, log_decay


class GatedLinearAttention(FastWeightAttention):
    """S_i = diag(a_i) S_(i-1) + k_i v_i^T with a_i = sigmoid(gate(k_i))^(1/16), one per feature.

    Costs O(t (16 + d) d) for t positions; the state is d by d a head.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
    """

    over_sequence = staticmethod(decayed)
    over_position = staticmethod(decayed_step)
    chunk_size: int = 16

    def __init__(self, num_heads: int, head_dim: int):
        super().__init__(num_heads, head_dim)
        self.gate = KeyGate(num_heads, head_dim, head_dim, bias=0.0)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        log_decay = (F.logsigmoid(self.gate(k)) / 16).clamp(min=FASTEST)
        return q, k * self.head_dim**-0.5, v, log_decay


class DeltaAttention(FastWeightAttention):
    """S_i = (I - b_i k_i k_i^T) S_(i-1) + b_i k_i v_i^T with b_i = sigmoid(gate(k_i)).

    Queries and keys pass silu and are scaled to length 1 (Yang et al., 2024). Costs
    O(t (l + d) d) for t positions in chunks of l; the state is d by d a head.

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        chunk_size: The positions of a chunk, l. Only speed depends on it.
    """

    over_sequence = staticmethod(delta)
    over_position = staticmethod(delta_step)

    @ranged
    def __init__(self, num_heads: int, head_dim: int, *, chunk_size: Size = 64):
        super().__init__(num_heads, head_dim)
        self.strength = KeyGate(num_heads, head_dim, 1, bias=0.0)
        self.chunk_size = chunk_size

    def prepare(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        strength = self.strength(k).sigmoid()
        q, k = (F.normalize(F.silu(x), dim=-1) for x in (q, k))
        return q, k, v, strength, torch.zeros_like(strength)


class GatedDeltaAttention(DeltaAttention):
    """The delta rule with a decay: S_(i-1) is first multiplied by a_i = sigmoid(gate(k_i)).

    See Yang, Kautz and Hatamizadeh (2025).
    """

    def __init__(self, num_heads: int, head_dim: int, *, chunk_size: int = 64):
        super().__init__(num_heads, head_dim, chunk_size=chunk_size)
        # The initial decay forgets about 1/50 a step.
        self.decay = KeyGate(num_heads, head_dim, 1, bias=4.0)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        *inputs, _ = super().prepare(q, k, v)
        return *inputs, F.logsigmoid(self.decay(k))
