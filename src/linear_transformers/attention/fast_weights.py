"""Unnormalised linear attention with a memory that forgets or corrects itself.

The state is one matrix a head. "Fast weights" is the oldest name of such recurrences (Schmidhuber,
1992).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers import shapes as sh
from linear_transformers.attention.base import POSITION, CausalAttention
from linear_transformers.ops.precision import accumulation_dtype, widened, without_autocast

MatrixState = Float[Tensor, "b h c m"]


class FastWeightAttention(CausalAttention[Tensor]):
    """The state is S, and the output S^T q scaled to unit root mean square, times a weight.

    There is no denominator: attention weights do not sum to one and may be negative. The norm
    bounds the outputs instead.
    """

    constant_state: ClassVar[bool] = True
    weights_sum_to_one: ClassVar[bool] = False
    over_sequence: ClassVar[Callable[..., tuple[Tensor, Tensor]]]
    over_position: ClassVar[Callable[..., tuple[Tensor, Tensor]]]
    chunk_size: int

    def __init__(self, num_heads: int, head_dim: int):
        super().__init__(num_heads, head_dim)
        self.norm = nn.Parameter(torch.ones(head_dim))

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
        shape = (batch, self.num_heads, self.head_dim, self.head_dim)
        return torch.zeros(shape, device=device, dtype=accumulation_dtype(dtype))

    def step(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: MatrixState
    ) -> tuple[sh.Output, Any]:
        self.check_heads(POSITION, q_i, k_i, v_i)
        with without_autocast(v_i):
            inputs = self.prepare(*widened(q_i, k_i, v_i))
            output, state = type(self).over_position(*inputs, state)
            return self._normed(output, v_i.dtype), state

    def select(self, state: MatrixState, rows: sh.Rows) -> Tensor:
        return state[rows]

    def prefill(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, state: Any = None
    ) -> tuple[sh.Outputs, MatrixState]:
        self.check(q, k, v)
        with without_autocast(v):
            inputs = self.prepare(*widened(q, k, v))
            outputs, state = type(self).over_sequence(
                *inputs, state=state, chunk_size=self.chunk_size
            )
            return self._normed(outputs, v.dtype), state

    def _normed(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.norm.to(x.dtype), eps=1e-5).to(dtype)


class KeyGate(nn.Module):
    """A linear gate of each key: how much to forget, or how much to correct.

    The papers compute gates from the layer's input. A key is a projection of it, and all that
    the contract passes on.

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
