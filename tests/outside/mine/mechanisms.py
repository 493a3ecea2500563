"""An attention, a layer of heads and a feature map of one's own."""

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_transformers.attention import CausalAttention
from linear_transformers.feature_maps import FeatureMap
from linear_transformers.mixers import MultiHead


class Softplus(FeatureMap):
    """phi(x) = log(1 + exp(beta x)) / beta. c = d."""

    def __init__(self, head_dim: int, *, beta: float = 1.0):
        super().__init__()
        self.feature_dim = head_dim
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, beta=self.beta)


class Sums(NamedTuple):
    """The state of `AftSimple`: two sums over the past, [b, h, d] each."""

    weighted: Tensor
    weights: Tensor


class AftSimple(CausalAttention[Sums]):
    """y_i = sum_(j <= i) w(k_j) v_j / sum_(j <= i) w(k_j), channel by channel, w = exp(tanh).

    After AFT-simple (Zhai et al., 2021), without its gate, which would scale constant values.
    Costs O(t d) for t positions; the state is two vectors.
    """

    constant_state: ClassVar[bool] = True

    def init_state(self, batch, *, device=None, dtype=torch.float32, capacity=0) -> Sums:
        wide = torch.promote_types(dtype, torch.float32)
        zeros = torch.zeros(batch, self.num_heads, self.head_dim, device=device, dtype=wide)
        return Sums(zeros, zeros)

    def step(self, q_i: Tensor, k_i: Tensor, v_i: Tensor, state: Sums) -> tuple[Tensor, Sums]:
        weight = k_i.to(state.weights).tanh().exp()
        state = Sums(state.weighted + weight * v_i, state.weights + weight)
        return (state.weighted / state.weights).to(v_i.dtype), state

    def prefill(self, q, k, v, state: Sums | None = None) -> tuple[Tensor, Sums]:
        self.check(q, k, v)
        if state is None:
            state = self.init_state(len(k), device=k.device, dtype=k.dtype)
        weight = k.to(state.weights).tanh().exp()
        weighted = state.weighted.unsqueeze(1) + (weight * v).cumsum(1)
        weights = state.weights.unsqueeze(1) + weight.cumsum(1)
        last = Sums(weighted[:, -1].clone(), weights[:, -1].clone())
        return (weighted / weights).to(v.dtype), last


class Fading(MultiHead):
    """y_i = sum_(j <= i) 2^(j - i) (q_i . k_j) v_j, head by head: retention, of one decay.

    Costs O(t d^2) for t positions, one after the other; the state is a matrix a head.
    """

    constant_state = True

    def __init__(self, model_dim: int, num_heads: int, **parts: Any):
        super().__init__(**parts)
        self.head_dim = model_dim // num_heads
        self.project(
            model_dim,
            num_heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            num_key_heads=num_heads,
        )

    def empty_past(self, batch, *, device, dtype, capacity) -> Tensor:
        wide = torch.promote_types(dtype, torch.float32)
        size = (batch, self.num_heads, self.head_dim, self.head_dim)
        return torch.zeros(size, device=device, dtype=wide)

    def mix_one(self, q, k, v, x, past, rotation, *, in_place) -> tuple[Tensor, Tensor]:
        outputs, past = self.mix(q[:, None], k[:, None], v[:, None], x, past, rotation)
        return outputs[:, 0], past

    def mix(self, q, k, v, x, past: Tensor | None, rotation) -> tuple[Tensor, Tensor]:
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        if past is None:
            past = self.empty_past(len(q), device=q.device, dtype=q.dtype, capacity=0)
        positions = (part.to(past.dtype).unbind(1) for part in (q, k, v))
        outputs = []
        for q_i, k_i, v_i in zip(*positions, strict=True):
            past = past / 2 + k_i.unsqueeze(-1) * v_i.unsqueeze(-2)
            outputs.append((q_i.unsqueeze(-2) @ past).squeeze(-2))
        return torch.stack(outputs, 1).to(v.dtype), past
