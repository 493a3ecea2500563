"""Position embeddings."""

import math
from functools import reduce
from operator import add
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from linear_transformers.config.ranges import check_choice
from linear_transformers.models.dropout import Dropout
from linear_transformers.ops.dropout import Draw
from linear_transformers.shapes import Places

POSITIONS = ("concatenated", "added", "learned", "axial", "none")


def sinusoids(positions: Places, width: int) -> Float[Tensor, "t width"]:
    """Return the fixed embeddings of Vaswani et al. (2017), section 3.5: sines and cosines."""
    even = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    rate = torch.exp(even * (-math.log(1e4) / width))
    angle = positions.double().unsqueeze(1) * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width].float()


class Positions(nn.Module):
    """Position embeddings for vectors of width `input_dim`; the results are e wide.

    Args:
        model_dim: The width of the results, e.
        kind: The kind of embeddings: `concatenated` (fixed sinusoids beside the vector, half the
            width each; the image models of Katharopoulos et al.), `added` (fixed sinusoids;
            Vaswani et al.), `learned` (added, and trained), `axial` (the sum of one learned
            embedding for each axis: of an image, the row, the column and the channel of the
            value that comes next) or `none`.
        max_length: The greatest number of positions, or the lengths of their axes, the last one
            fastest; None is no bound.
        dropout: The dropout rate of the results.

    Attributes:
        input_dim: The width of the vectors, i.
        max_length: The greatest number of positions.

    Raises:
        ValueError: The kind is unknown, an odd width is to be halved, or learned positions have
            no bound.
    """

    coordinates: Tensor

    def __init__(
        self,
        model_dim: int,
        *,
        kind: str,
        max_length: int | tuple[int, ...] | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        axes = (max_length,) if isinstance(max_length, int) else max_length
        check_choice("positions", kind, POSITIONS)
        if kind == "concatenated" and model_dim % 2:
            raise ValueError(
                f"positions=concatenated halves model_dim={model_dim}, which is odd. "
                f"Use model_dim={model_dim + 1}, or positions=added."
            )
        if kind in ("learned", "axial") and axes is None:
            raise ValueError(
                f"positions={kind} needs a maximum length, and these sequences have none. "
                "Use positions=added."
            )
        self.kind = kind
        self.max_length = None if axes is None else math.prod(axes)
        self.input_dim = model_dim // 2 if kind == "concatenated" else model_dim
        self.dropout = Dropout(dropout)
        if kind == "learned":
            assert self.max_length is not None
            self.table = nn.Parameter(0.02 * torch.randn(self.max_length, model_dim))
        elif kind == "axial":
            assert axes is not None
            # Their sum begins as large as the embeddings of tokens: smaller ones are not seen.
            scale = len(axes) ** -0.5
            self.tables = nn.ParameterList(scale * torch.randn(size, model_dim) for size in axes)
            self.axes = axes
            self.register_buffer("coordinates", self._fixed(), persistent=False)
        elif kind != "none":
            # Recomputed, not saved: a checkpoint holds what was learned.
            self.register_buffer("table", self._fixed(), persistent=False)

    def forward(
        self,
        x: Float[Tensor, "b t i"],
        start: int | Int[Tensor, "1"] = 0,
        draw: Draw | None = None,
    ) -> Float[Tensor, "b t e"]:
        """Embed the positions `start`, `start + 1`, ... of vectors.

        Args:
            x: The vectors.
            start: The position of the first. As a tensor, in an exported graph, it is not checked.
            draw: What masks of dropout are drawn from; None drops nothing.

        Raises:
            ValueError: There are no positions left.
        """
        if isinstance(start, Tensor):
            positions = start + torch.arange(x.shape[1], device=start.device)
        else:
            self.check(end := start + x.shape[1])
            # Sinusoids are computed on the CPU: not every device has float64.
            positions = torch.arange(start, end) if self.max_length is None else slice(start, end)
        return self.dropout(self._with(x, positions), draw)

    def _fixed(self) -> Tensor:
        """Return what is not learned: the coordinates of each position, or its sinusoids."""
        if self.kind == "axial":
            places = torch.cartesian_prod(*map(torch.arange, self.axes)).view(-1, len(self.axes))
            return places.T.contiguous()
        return sinusoids(torch.arange(self.max_length or 0), self.input_dim)

    def _load_from_state_dict(self, state_dict: dict[str, Any], *args: Any, **more: Any) -> None:
        """Load what was learned, and compute the rest anew: a module that was made on the meta
        device has no numbers."""
        loaded = next((x.device for x in state_dict.values()), "cpu")
        for name, buffer in self.named_buffers():
            device = loaded if buffer.is_meta else buffer.device
            setattr(self, name, self._fixed().to(device, buffer.dtype))
        super()._load_from_state_dict(state_dict, *args, **more)

    def unbind(self) -> None:
        """Let sequences be longer than `max_length`, where no embedding is learned."""
        if self.kind not in ("learned", "axial"):
            self.max_length = None

    def step(
        self, x: Float[Tensor, "b i"], position: int | Int[Tensor, "1"]
    ) -> Float[Tensor, "b e"]:
        """Embed the position of one vector of each sequence, the same for all.

        Args:
            x: The vectors.
            position: The position. As a tensor, on the device, it must be below `max_length`.

        Raises:
            ValueError: There are no positions left.
        """
        return self(x.unsqueeze(1), position).squeeze(1)

    def check(self, count: int) -> None:
        """Refuse more positions than there are.

        Args:
            count: The number of vectors of a sequence, the past included.

        Raises:
            ValueError: There are no positions left.
        """
        if self.max_length is not None and count > self.max_length:
            raise ValueError(
                f"{count} tokens were read; the model has positions for {self.max_length}."
            )

    def _with(self, x: Float[Tensor, "b t i"], positions: slice | Places) -> Float[Tensor, "b t e"]:
        if x.shape[-1] != self.input_dim:
            raise ValueError(
                f"Vectors are {x.shape[-1]} wide, and positions={self.kind} takes input_dim="
                f"{self.input_dim}. (`concatenated` adds as many numbers to each.)"
            )
        if self.kind == "none":
            return x
        if not isinstance(positions, slice) and self.max_length is None:
            places = sinusoids(positions, self.input_dim)
        elif self.kind == "axial":
            along = zip(self.tables, self.coordinates, strict=True)
            places = reduce(add, (table[at[positions]] for table, at in along))
        else:
            places = self.table[positions]
        places = places.to(x.device, x.dtype, non_blocking=True)  # a step need not wait for it
        if self.kind == "concatenated":
            return torch.cat([x, places.expand_as(x)], dim=-1)
        return x + places
