"""Attention to stored keys and values: the cache, and how it is filled."""

from abc import abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linear_transformers import shapes as sh
from linear_transformers.attention.base import CausalAttention
from linear_transformers.attention.states import POSITION, check_past


class Buffer:
    """Memory that several states may share, of which the first `taken` positions are written.

    A state owns the positions before its own length. Appending at the end of the taken part
    writes in place; appending elsewhere is a fork, and copies. So `step` has no side effects,
    and yet does not copy the cache at every step.
    """

    def __init__(self, keys: Float[Tensor, "b k s d"], values: Float[Tensor, "b k s m"]):
        self.keys = keys
        self.values = values
        self.taken = 0

    @property
    def capacity(self) -> int:
        """The number of positions that it has room for."""
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Its size, with the room that it has."""
        return self.keys.nbytes + self.values.nbytes


def can_be_written(keys: Tensor, values: Tensor) -> bool:
    """Return whether torch lets this mode write in place: not what a backward pass may read, nor,
    elsewhere, what was made in inference mode."""
    if torch.is_grad_enabled() or keys.requires_grad or values.requires_grad:
        return False
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return True
    return not keys.is_inference()


class KeyValueCache(NamedTuple):
    """All keys and values so far: the first `length` positions of the buffer. Grows with length."""

    buffer: Buffer
    length: int

    @property
    def keys(self) -> Float[Tensor, "b k s d"]:
        """The keys so far."""
        return self.buffer.keys[:, :, : self.length]

    @property
    def values(self) -> Float[Tensor, "b k s m"]:
        """The values so far."""
        return self.buffer.values[:, :, : self.length]

    def append(
        self, keys: Float[Tensor, "b k s d"], values: Float[Tensor, "b k s m"]
    ) -> "KeyValueCache":
        """Return a cache with more positions at its end. This one is left unmodified.

        Raises:
            ValueError: They are those of other sequences, or of another layer.
        """
        _, heads, _, width = keys.shape
        check_past(keys, self.keys, heads, self.length, width)
        longer = self.lengthened(keys.shape[2])
        longer.keys[:, :, self.length :] = keys
        longer.values[:, :, self.length :] = values
        return longer

    def lengthened(self, count: int) -> "KeyValueCache":
        """Return a cache with more positions at its end, of which nothing is written yet."""
        end, buffer = self.length + count, self.buffer
        full = buffer.taken != self.length or end > buffer.capacity
        if full or not can_be_written(buffer.keys, buffer.values):
            room = (0, 0, 0, max(end, buffer.capacity, 2 * self.length) - self.length)
            buffer = Buffer(F.pad(self.keys, room), F.pad(self.values, room))
        # A backward pass may read all of it: nobody appends.
        buffer.taken = buffer.capacity if torch.is_grad_enabled() else end
        return KeyValueCache(buffer, end)

    def select(self, rows: sh.Rows) -> "KeyValueCache":
        """Return the cache of some of the sequences, in memory of its own with as much room."""
        # index_select copies whatever it takes: a slice would share this memory, and write into it.
        keys, values = (x.index_select(0, rows) for x in (self.buffer.keys, self.buffer.values))
        buffer = Buffer(keys, values)
        buffer.taken = self.length
        return KeyValueCache(buffer, self.length)


class CachedAttention(CausalAttention[KeyValueCache]):
    """Attention whose past is all its keys and values."""

    constant_state = False

    @abstractmethod
    def attend(self, q: sh.Queries, keys: Tensor, values: Tensor, start: int) -> sh.Outputs:
        """Attend from positions `start`, `start + 1`, ... to keys and values [b, k, s, d or m] that
        end with the last."""

    def forward(self, q: sh.Queries, k: sh.Keys, v: sh.Values) -> sh.Outputs:
        self.check(q, k, v)
        return self.attend(q, k.transpose(1, 2), v.transpose(1, 2), 0)

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> KeyValueCache:
        shape = (batch, self.num_key_heads, capacity, self.head_dim)
        keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        return KeyValueCache(Buffer(keys, values), length=0)

    def step(
        self, q_i: sh.Query, k_i: sh.Key, v_i: sh.Value, state: KeyValueCache
    ) -> tuple[sh.Output, KeyValueCache]:
        self.check_heads(POSITION, q_i, keys=(k_i, v_i))
        state = state.append(k_i.unsqueeze(2), v_i.unsqueeze(2))
        output = self.attend(q_i.unsqueeze(1), state.keys, state.values, state.length - 1)
        return output.squeeze(1), state

    def select(self, state: KeyValueCache, rows: sh.Rows) -> KeyValueCache:
        return state.select(rows)

    def prefill(
        self, q: sh.Queries, k: sh.Keys, v: sh.Values, state: KeyValueCache | None = None
    ) -> tuple[sh.Outputs, KeyValueCache]:
        self.check(q, k, v)
        if state is None:
            state = self.init_state(len(k), device=k.device, dtype=k.dtype)
        past = state.length
        state = state.append(k.transpose(1, 2), v.transpose(1, 2))
        outputs = self.attend(q, state.keys, state.values, past) if past else self.forward(q, k, v)
        return outputs, state
