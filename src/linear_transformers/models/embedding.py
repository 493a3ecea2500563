"""What a token is and where it stands."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.shapes import Hidden, HiddenOne, Tokens, TokensOne

POSITIONS = ("concatenated", "added", "learned")


def sinusoids(max_length: int, width: int) -> Float[Tensor, "t width"]:
    """Fixed positions of Vaswani et al. (2017), section 3.5: sines and cosines in turn."""
    position = torch.arange(max_length, dtype=torch.float64).unsqueeze(1)
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(1e4) / width))
    table = torch.stack([(position * rate).sin(), (position * rate).cos()], dim=-1)
    return table.flatten(1)[:, :width].float()


class TokenEmbedding(nn.Module):
    """A learned vector for the token, and one for its position.

    Args:
        num_tokens: v, the start token included.
        model_dim: e.
        max_length: The most positions there will be.
        positions: `concatenated` (the image models of Katharopoulos et al.: half the width
            for the token, half for fixed sinusoids), `added` (fixed sinusoids, the full width
            for both; Vaswani et al.) or `learned` (added, and trained).
        dropout: On the sum.

    Raises:
        ValueError: `positions` is none of these, or an odd width is to be halved.
    """

    def __init__(
        self, num_tokens: int, model_dim: int, max_length: int, *, positions: str, dropout: float
    ):
        super().__init__()
        if positions not in POSITIONS:
            raise ValueError(f"positions={positions} is unknown. Choose one of {list(POSITIONS)}.")
        if positions == "concatenated" and model_dim % 2:
            raise ValueError(
                f"positions=concatenated halves model_dim={model_dim}, which is odd. "
                f"Use model_dim={model_dim + 1}, or positions=added."
            )
        self.max_length = max_length
        self.concatenated = positions == "concatenated"
        width = model_dim // 2 if self.concatenated else model_dim
        self.tokens = nn.Embedding(num_tokens, width)
        self.dropout = nn.Dropout(dropout)
        if positions == "learned":
            self.positions = nn.Parameter(0.02 * torch.randn(max_length, model_dim))
        else:
            # Recomputed, not saved: a checkpoint holds what was learned.
            self.register_buffer("positions", sinusoids(max_length, width), persistent=False)

    def forward(self, tokens: Tokens, start: int = 0) -> Hidden:
        """Embed tokens that stand at positions `start`, `start + 1`, ...

        Raises:
            ValueError: There are no positions left.
        """
        self._check(start + tokens.shape[1])
        return self._place(self.tokens(tokens), self.positions[start : start + tokens.shape[1]])

    def step(self, tokens: TokensOne, position: int) -> HiddenOne:
        """Embed one token of each sequence, all at the same position.

        Raises:
            ValueError: There are no positions left.
        """
        self._check(position + 1)
        return self._place(self.tokens(tokens), self.positions[position])

    def _check(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                f"{length} tokens were read; the model has positions for {self.max_length}."
            )

    def _place(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.concatenated:
            return self.dropout(torch.cat([x, positions.to(x.dtype).expand_as(x)], dim=-1))
        return self.dropout(x + positions)
