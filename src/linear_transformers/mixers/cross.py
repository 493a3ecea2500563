"""Heads that attend to another sequence, as decoders do."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.attention.base import AttentionFactory, CrossAttention
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.mixers.multi_head import whole_heads
from linear_transformers.shapes import Hidden, Lengths, Source


class MultiHeadCrossAttention(nn.Module):
    """Heads whose queries are of x, and whose keys and values are of another sequence, the source.

        y = W_o heads(x W_q, source W_k, source W_v)    with a bias each

    Vaswani et al. (2017), section 3.2.3. The source is summarised once, into a memory that every
    position of x reads: linear attention keeps a matrix of constant size, softmax attention all
    keys and values.

    Args:
        model_dim: The width of inputs, source and outputs, e.
        num_heads: The number of heads, h; each is e / h wide.
        attention: The constructor of the attention, which takes `num_heads` and `head_dim`.

    Raises:
        ValueError: `model_dim` is not a multiple of `num_heads`, or the attention cannot attend
            to another sequence.
    """

    @ranged
    def __init__(self, model_dim: Size, num_heads: Size, *, attention: AttentionFactory):
        super().__init__()
        head_dim = whole_heads(model_dim, num_heads)
        made = attention(num_heads, head_dim)
        if not isinstance(made, CrossAttention):
            raise ValueError(
                f"{type(made).__name__} cannot attend to another sequence. Use linear or softmax "
                "attention there: task/cross=linear or task/cross=softmax."
            )
        self.attention = made
        self.head_dim = head_dim
        of_keys = made.num_key_heads * head_dim
        self.project_query = nn.Linear(model_dim, model_dim)
        self.project_source = nn.Linear(model_dim, 2 * of_keys)
        self.project_out = nn.Linear(model_dim, model_dim)

    @property
    def name(self) -> str:
        """The name of what attends, for people."""
        return type(self.attention).__name__

    def summarize(self, source: Source, lengths: Lengths | None = None) -> Any:
        """Return the memory of a source.

        Args:
            source: The vectors of the source.
            lengths: The length of each sequence, at least 1; None is all of it. Padding is ignored.
        """
        k, v = self._heads(self.project_source(source)).chunk(2, dim=-2)
        return self.attention.summarize(k, v, lengths)

    def forward(self, x: Hidden, memory: Any) -> Hidden:
        """Return the outputs of positions that read a memory."""
        read = self.attention.read(self._heads(self.project_query(x)), memory)
        return self.project_out(read.flatten(-2))

    def weights(self, x: Hidden, source: Source) -> Float[Tensor, "b h t s"]:
        """Return the share that each position of the source has in each output.

        Outputs are means of values whatever the attention: where values are one-hot, they are the
        weights, which linear attention itself never forms. As many positions as a head is wide
        are read at a time.
        """
        q = self._heads(self.project_query(x))
        k, _ = self._heads(self.project_source(source)).chunk(2, dim=-2)
        num_keys = k.shape[1]
        padded = -(-num_keys // self.head_dim) * self.head_dim
        one_hot = torch.eye(num_keys, padded, dtype=k.dtype, device=k.device)
        shares = [
            self.attention.read(q, self.attention.summarize(k, v.expand_as(k)))
            for v in one_hot[None, :, None].split(self.head_dim, dim=-1)
        ]
        return torch.cat(shares, dim=-1)[..., :num_keys].movedim(2, 1)

    def memory_bytes(self, length: int, dtype: torch.dtype = torch.float32) -> int:
        """Return the size of the memory of one source of `length` positions, in bytes."""
        return self.attention.state_bytes(length, dtype)  # a memory is as large as a state

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


# Called with model_dim and num_heads, once per layer.
CrossFactory = Callable[[int, int], MultiHeadCrossAttention]
