"""Softmax attention to the last few positions, whose state has one size."""

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.attention.base import POSITION, CausalAttention
from linear_transformers.attention.softmax import attended
from linear_transformers.config.ranges import Positive, Size, ranged


class WindowState(NamedTuple):
    """The last keys and values, the latest at the end, and how many of them each sequence has."""

    keys: Float[Tensor, "b k kept d"]
    values: Float[Tensor, "b k kept m"]
    written: Int[Tensor, " b"]


class WindowAttention(CausalAttention[WindowState]):
    """Softmax attention in which each position sees itself and the `window` - 1 before it.

        V'_i = sum_{i-w<j<=i} exp(scale q_i . k_j) v_j / sum_{i-w<j<=i} exp(scale q_i . k_j)

    Costs O(t w d) for t positions; the state holds w - 1 keys and values. Sliding-window attention
    (Beltagy et al., 2020), as hybrids of it and recurrences have it (De et al., 2024).

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        window: The number of positions that one sees, w.
        scale: The factor of the dot product; None is 1/sqrt(d).
        num_key_heads: The number of heads of keys and values, a divisor of h: each is shared by
            the queries of a group of heads (Ainslie et al., 2023). None is h.

    Raises:
        ValueError: The heads do not divide into equal groups.
    """

    constant_state: ClassVar[bool] = True

    @ranged
    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        window: Size = 128,
        scale: Positive | None = None,
        num_key_heads: Size | None = None,
    ):
        super().__init__(num_heads, head_dim, num_key_heads=num_key_heads)
        self.window = window
        self.scale = scale

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> WindowState:
        shape = (batch, self.num_key_heads, self.window - 1, self.head_dim)
        keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        return WindowState(keys, values, torch.zeros(batch, device=device, dtype=torch.long))

    def step(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: WindowState
    ) -> tuple[sh.Output, WindowState]:
        self.check_heads(POSITION, q_i, keys=(k_i, v_i))
        keys = torch.cat([state.keys, k_i.unsqueeze(2).to(state.keys.dtype)], dim=2)
        values = torch.cat([state.values, v_i.unsqueeze(2).to(state.values.dtype)], dim=2)
        seen = torch.arange(self.window, device=k_i.device) + state.written[:, None] >= (
            self.window - 1
        )
        out = self._attended(q_i.unsqueeze(1), keys, values, seen[:, None, None])
        return out.squeeze(1), self._after(keys, values, state.written + 1)

    def prefill(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, state: WindowState | None = None
    ) -> tuple[sh.Outputs, WindowState]:
        self.check(q, k, v)
        batch, length = q.shape[:2]
        if state is None:
            state = self.init_state(batch, device=k.device, dtype=k.dtype)
        keys = torch.cat([state.keys.to(k.dtype), k.transpose(1, 2)], dim=2)
        values = torch.cat([state.values.to(v.dtype), v.transpose(1, 2)], dim=2)
        # Each block of queries sees its own keys and the w - 1 before them.
        size = min(self.window, length)
        blocks = -(-length // size)
        room = blocks * size - length
        parts = [
            F.pad(x, (0, 0, 0, room)).unfold(2, size + self.window - 1, size).movedim(2, 1)
            for x in (keys, values)
        ]
        ours, there = (torch.arange(n, device=q.device) for n in (size, parts[0].shape[-1]))
        behind = ours[:, None] - there + self.window - 1  # how many positions a key is before
        near = (behind >= 0) & (behind < self.window)
        places = there + size * torch.arange(blocks, device=q.device)[:, None]
        written = places >= self.window - 1 - state.written[:, None, None]
        queries = F.pad(q, (0, 0, 0, 0, 0, room)).unflatten(1, (blocks, size)).flatten(0, 1)
        keys_of, values_of = (part.flatten(0, 1).transpose(-1, -2) for part in parts)
        seen = (written[:, :, None] & near).flatten(0, 1).unsqueeze(1)
        out = self._attended(queries, keys_of, values_of, seen)
        out = out.unflatten(0, (batch, blocks)).flatten(1, 2)[:, :length]
        return out, self._after(keys, values, state.written + length)

    def select(self, state: WindowState, rows: sh.Rows) -> WindowState:
        return WindowState(*(part[rows] for part in state))

    def _attended(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        options = {"scale": self.scale, "enable_gqa": self.group > 1}
        return attended(q, keys, values, attn_mask=mask, **options)

    def _after(self, keys: Tensor, values: Tensor, written: Tensor) -> WindowState:
        """Return the state after keys and values, of which it keeps the last."""
        begin = keys.shape[2] - self.window + 1
        # Cloned: a view would keep the whole sequence in memory.
        keys, values = (x[:, :, begin:].clone() for x in (keys, values))
        return WindowState(keys, values, written.clamp(max=self.window - 1))
