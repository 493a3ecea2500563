"""The baseline of Katharopoulos et al. (2020), table 3: bidirectional LSTMs."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from linear_transformers.config.ranges import Depth, Fraction, Size, ranged
from linear_transformers.ops.lengths import check_lengths
from linear_transformers.shapes import Lengths


class BiLstm(nn.Module):
    """A bidirectional stack for encoders, in place of a `Transformer`; it has no `step`.

    Args:
        max_length: The length of the longest sequence. Ignored: there are no positions.
        num_layers: The number of layers, each of one LSTM per direction.
        hidden_dim: The width of each direction.
        dropout: The dropout rate between layers.

    Attributes:
        input_dim: The width of the inputs, i.
        model_dim: The width of the outputs, e: both directions together.

    Raises:
        ValueError: A number is too small.
    """

    free_options: ClassVar[frozenset[str]] = frozenset({"dropout"})
    causal: bool = False

    @ranged
    def __init__(
        self,
        max_length: Size | tuple[Size, ...] | None = None,
        *,
        num_layers: Depth = 3,
        hidden_dim: Size = 320,
        dropout: Fraction = 0.1,
    ):
        super().__init__()
        self.input_dim = hidden_dim
        self.model_dim = 2 * hidden_dim
        self.lstm = nn.LSTM(
            hidden_dim,
            hidden_dim,
            num_layers,
            batch_first=True,
            dropout=dropout if num_layers > 1 else 0.0,  # torch warns of dropout between nothing
            bidirectional=True,
        )

    @property
    def description(self) -> str:
        """The number and kind of layers, for the run's log."""
        number = self.lstm.num_layers
        return f"{number} layer{'s'[: number - 1]} of {type(self).__name__}"

    def kernel_on(self, device: torch.device) -> str:
        """Return the name of the implementation, for the run's log."""
        return "torch"

    def forward(
        self, x: Float[Tensor, "b t i"], lengths: Lengths | None = None
    ) -> Float[Tensor, "b t e"]:
        """Return the outputs of all positions; those at padding are zero.

        Raises:
            ValueError: See `check_lengths`.
        """
        if lengths is None or lengths.is_meta:  # meta tensors hold no lengths
            return self.lstm(x)[0]
        check_lengths(lengths, *x.shape[:2])
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, _ = self.lstm(packed)
        return pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])[0]
