"""Where a vector stands in its sequence."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from linear_transformers.shapes import Places

POSITIONS = ("concatenated", "added", "learned", "none")


def sinusoids(positions: Places, width: int) -> Float[Tensor, "t width"]:
    """Fixed positions of Vaswani et al. (2017), section 3.5: sines and cosines in turn."""
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(1e4) / width))
    angle = positions.double().unsqueeze(1) * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width].float()


class Positions(nn.Module):
    """Puts positions to vectors of width `input_dim`, which gives vectors of width e.

    Args:
        model_dim: e.
        kind: `concatenated` (the image models of Katharopoulos et al.: half the width for the
            vector, half for fixed sinusoids), `added` (fixed sinusoids, the full width for
            both; Vaswani et al.), `learned` (added, and trained) or `none`.
        max_length: The most positions there will be; None is no bound.
        dropout: On the result.

    Attributes:
        input_dim: The width that vectors must have.

    Raises:
        ValueError: An unknown `kind`, an odd width that is to be halved, or positions that are
            to be learned without bound.
    """

    def __init__(
        self, model_dim: int, *, kind: str, max_length: int | None = None, dropout: float = 0.0
    ):
        super().__init__()
        if kind not in POSITIONS:
            raise ValueError(f"positions={kind} is unknown. Choose one of {list(POSITIONS)}.")
        if kind == "concatenated" and model_dim % 2:
            raise ValueError(
                f"positions=concatenated halves model_dim={model_dim}, which is odd. "
                f"Use model_dim={model_dim + 1}, or positions=added."
            )
        if kind == "learned" and max_length is None:
            raise ValueError(
                "positions=learned needs sequences of bounded length, and these have none. "
                "Use positions=added."
            )
        self.kind = kind
        self.max_length = max_length
        self.input_dim = model_dim // 2 if kind == "concatenated" else model_dim
        self.dropout = nn.Dropout(dropout)
        if kind == "learned":
            assert max_length is not None
            self.table = nn.Parameter(0.02 * torch.randn(max_length, model_dim))
        elif kind != "none":
            # Recomputed, not saved: a checkpoint holds what was learned.
            table = sinusoids(torch.arange(max_length or 0), self.input_dim)
            self.register_buffer("table", table, persistent=False)

    def forward(self, x: Float[Tensor, "b t i"], start: int = 0) -> Float[Tensor, "b t e"]:
        """Place vectors that stand at positions `start`, `start + 1`, ...

        Raises:
            ValueError: There are no positions left.
        """
        return self._place(x, start, x.shape[1])

    def step(
        self, x: Float[Tensor, "b i"], position: int | Int[Tensor, "1"]
    ) -> Float[Tensor, "b e"]:
        """Place one vector of each sequence, all at the same position.

        Args:
            x: The vectors.
            position: Of all; or where it is found, on the device, below `max_length`.

        Raises:
            ValueError: There are no positions left.
        """
        if isinstance(position, Tensor):
            if self.kind == "none":
                return self.dropout(x)
            assert self.max_length is not None
            return self._with(x, self.table.index_select(0, position))
        return self._place(x.unsqueeze(1), position, 1).squeeze(1)

    def _place(self, x: Tensor, start: int, count: int) -> Tensor:
        end = start + count
        if self.max_length is not None and end > self.max_length:
            raise ValueError(
                f"{end} tokens were read; the model has positions for {self.max_length}."
            )
        if self.kind == "none":
            return self.dropout(x)
        if self.max_length is None:
            # On the CPU: not every device knows float64.
            places = sinusoids(torch.arange(start, end), self.input_dim).to(x.device)
        else:
            places = self.table[start:end]
        return self._with(x, places)

    def _with(self, x: Float[Tensor, "*batch i"], places: Float[Tensor, "t i"]) -> Tensor:
        if self.kind == "concatenated":
            return self.dropout(torch.cat([x, places.to(x.dtype).expand_as(x)], dim=-1))
        return self.dropout(x + places.to(x.dtype))
