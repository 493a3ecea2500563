"""Softmax attention to the last positions only: a past of one size, however long it was."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.attention.base import BidirectionalAttention, CausalAttention
from linear_transformers.attention.cache import can_be_written
from linear_transformers.attention.softmax import attended
from linear_transformers.attention.states import POSITION, check_past
from linear_transformers.config.ranges import Positive, Size, ranged
from linear_transformers.ops.lengths import valid

WINDOW = 128  # positions, of sequences without rows
ROWS = 2  # of an image: the pixels above and their neighbours


class WindowState(NamedTuple):
    """The keys and values of the last w positions.

    Position i is in slot i mod w, so that a step writes one slot and moves nothing.

    Attributes:
        keys: The keys; zeros in slots that were not written.
        values: The values, likewise.
        written: The number of positions of each sequence so far.
    """

    keys: Float[Tensor, "b k w d"]
    values: Float[Tensor, "b k w m"]
    written: sh.Lengths


class WindowAttention(CausalAttention[WindowState], BidirectionalAttention):
    """Softmax attention in which a position sees itself and the w - 1 positions before it; in its
    bidirectional form, the w - 1 after it, too.

        V'_i = sum_{i-w<j<=i} exp(scale q_i . k_j) v_j / sum_{i-w<j<=i} exp(scale q_i . k_j)

    Costs O(t w d) for t positions; the state holds w keys and values, and a step reads them all.
    Sliding-window attention (Beltagy et al., 2020), as hybrids of it and recurrences have it (De
    et al., 2024).

    Args:
        num_heads: The number of heads, h.
        head_dim: The width of queries, keys and values of a head: d and m.
        window: The number of positions that each sees, w. None is two rows of an image, and of
            other sequences 128.
        scale: The factor of the dot product. None is 1/sqrt(d).
        num_key_heads: The number of heads of keys and values, a divisor of h: each is shared by
            the queries of a group of heads (Ainslie et al., 2023). None is h.

    Raises:
        ValueError: A number is out of its range, or the heads do not divide into equal groups.
    """

    kernel = "sdpa"
    constant_state = True

    @ranged
    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        window: Size | None = WINDOW,
        scale: Positive | None = None,
        num_key_heads: Size | None = None,
    ):
        super().__init__(num_heads, head_dim, num_key_heads=num_key_heads)
        self.window = WINDOW if window is None else window
        self.scale = scale
        self._in_rows = window is None

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """The sizes of what is kept of each sequence."""
        return self.num_key_heads, self.window, self.head_dim

    def lay_in_rows(self, row: int) -> None:
        """Suit sequences that run through rows of so many positions, before the first call."""
        if self._in_rows:
            self.window = ROWS * row

    def forward(self, q: sh.Queries, k: sh.Keys, v: sh.Values) -> sh.Outputs:
        self.check(q, k, v)
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        own = (x[:, :, : self.window] for x in (keys, values))
        first = attended(q[:, : self.window], *own, scale=self.scale, is_causal=True)
        return self._followed(first, q, keys, values)

    def bidirectional(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, lengths: sh.Lengths | None = None
    ) -> sh.Outputs:
        self.check(q, k, v)
        self.check_memory(k, v, lengths)
        count = q.shape[1]
        block = min(self.window, count)
        if lengths is None:
            lengths = torch.full((len(q),), count, device=q.device)
        mask = valid(lengths, count)
        k, v = (x.where(mask[..., None, None], 0) for x in (k, v))  # 0 times NaN is NaN
        # Each block of queries reads the keys of the block before it, of its own and of the next.
        keys, values = (F.pad(x.transpose(1, 2), (0, 0, block, block)) for x in (k, v))
        within = F.pad(mask, (block, block + -count % block)).unfold(1, 3 * block, block)
        place = torch.arange(3 * block, device=q.device)
        apart = (place[block:-block].unsqueeze(1) - place).abs()
        # Padding sees itself: a softmax of nothing has no gradient.
        seen = (apart < self.window) & (within.unsqueeze(2) | (apart == 0))
        return self._in_blocks(q, keys, values, seen.flatten(0, 1).unsqueeze(1))

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> WindowState:
        shape = (batch, *self._sizes)
        keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        return WindowState(keys, values, torch.zeros(batch, device=device, dtype=torch.long))

    def step(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: WindowState
    ) -> tuple[sh.Output, WindowState]:
        return self._step(q_i, k_i, v_i, state, Tensor.scatter)

    def step_in_place(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: WindowState
    ) -> tuple[sh.Output, WindowState]:
        """Step without a copy of the window, unless a backward pass will read it."""
        free = can_be_written(state.keys, state.values)
        return self._step(q_i, k_i, v_i, state, Tensor.scatter_ if free else Tensor.scatter)

    def prefill(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, state: WindowState | None = None
    ) -> tuple[sh.Outputs, WindowState]:
        self.check(q, k, v)
        past = state or self.init_state(len(k), device=k.device, dtype=k.dtype)
        check_past(k, past.keys, *self._sizes)
        count, window = q.shape[1], self.window
        keys, values = (
            torch.cat([_turned(old, past.written), new.transpose(1, 2).to(old.dtype)], dim=2)
            for old, new in ((past.keys, k), (past.values, v))
        )
        written = past.written + count
        last_keys, last_values = (_turned(x[:, :, count:], -written) for x in (keys, values))
        after = WindowState(last_keys, last_values, written)
        if state is None:
            return self.forward(q, k, v), after
        first = min(count, window)
        slots = torch.arange(window + first, device=q.device)
        seen = self._band(first, q.device) & (slots >= window - past.written.view(-1, 1, 1, 1))
        near = (x[:, :, : window + first] for x in (keys, values))
        begin = attended(q[:, :first], *near, scale=self.scale, attn_mask=seen)
        return self._followed(begin, q, keys[:, :, window:], values[:, :, window:]), after

    def _step(
        self,
        q_i: sh.Query,
        k_i: sh.Key,
        v_i: sh.Value,
        state: WindowState,
        write: Callable[[Tensor, int, Tensor, Tensor], Tensor],
    ) -> tuple[sh.Output, WindowState]:
        self.check_heads(POSITION, q_i, keys=(k_i, v_i))
        check_past(q_i, state.keys, *self._sizes)
        slot = (state.written % self.window).view(-1, 1, 1, 1).expand_as(k_i.unsqueeze(2))
        keys, values = (
            write(old, 2, slot, new.unsqueeze(2).to(old.dtype))
            for old, new in ((state.keys, k_i), (state.values, v_i))
        )
        seen = torch.arange(self.window, device=q_i.device) <= state.written.view(-1, 1, 1, 1)
        output = attended(q_i.unsqueeze(1), keys, values, scale=self.scale, attn_mask=seen)
        return output.squeeze(1), WindowState(keys, values, state.written + 1)

    def _followed(
        self,
        first: Float[Tensor, "b first h m"],
        q: sh.Queries,
        keys: Float[Tensor, "b k s d"],
        values: Float[Tensor, "b k s m"],
    ) -> sh.Outputs:
        """Return the outputs of all positions, given those of the first w.

        Each further block of w positions sees itself and the block before.
        """
        rest = q[:, self.window :]
        if not rest.shape[1]:
            return first
        seen = self._band(self.window, q.device)
        return torch.cat([first, self._in_blocks(rest, keys, values, seen)], dim=1)

    def _in_blocks(
        self,
        q: sh.Queries,
        keys: Float[Tensor, "b k s d"],
        values: Float[Tensor, "b k s m"],
        seen: Bool[Tensor, "*n block span"],
    ) -> sh.Outputs:
        """Return the outputs of blocks of queries: block i reads `span` keys, from i blocks on."""
        count, (block, span) = q.shape[1], seen.shape[-2:]
        end = -count % block
        q = F.pad(q, (0, 0, 0, 0, 0, end)).unflatten(1, (-1, block)).flatten(0, 1)
        keys, values = (
            F.pad(x, (0, 0, 0, end)).unfold(2, span, block).permute(0, 2, 1, 4, 3)
            for x in (keys, values)
        )
        own = (x.flatten(0, 1) for x in (keys, values))
        outputs = attended(q, *own, scale=self.scale, attn_mask=seen)
        return outputs.unflatten(0, keys.shape[:2]).flatten(1, 2)[:, :count]

    def _band(self, count: int, device: torch.device) -> Bool[Tensor, "t s"]:
        """Return which keys are seen by queries at the last `count` of w + `count` positions."""
        keys = torch.arange(-self.window, count, device=device)
        back = keys[self.window :].unsqueeze(1) - keys
        return (back >= 0) & (back < self.window)


def _turned(x: Float[Tensor, "b k w d"], by: sh.Lengths) -> Float[Tensor, "b k w d"]:
    """Return each row with slot `by` first: slots in the order of positions, or back into slots."""
    window = x.shape[2]
    slots = (torch.arange(window, device=x.device) + by.unsqueeze(1)) % window
    return x.take_along_dim(slots[:, None, :, None], dim=2)
