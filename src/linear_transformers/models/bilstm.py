"""The baseline of Katharopoulos et al. (2020), table 3: layers of LSTMs that read both ways."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from linear_transformers.shapes import Lengths


class BiLstm(nn.Module):
    """Stands in an encoder where a `Transformer` would; it sees everything and has no steps.

    Args:
        max_length: The longest sequence, as stacks with positions have to know it. Not used.
        num_layers: Each of two LSTMs, one a direction.
        hidden_dim: Width of each direction.
        dropout: Between layers.

    Attributes:
        input_dim: i, the width of its inputs.
        model_dim: Width of its outputs, both directions together.

    Raises:
        ValueError: A number that is too small.
    """

    free_options: ClassVar[frozenset[str]] = frozenset({"dropout"})
    causal: bool = False
    activation_checkpointing: bool = False

    def __init__(
        self,
        max_length: int | None = None,
        *,
        num_layers: int = 3,
        hidden_dim: int = 320,
        dropout: float = 0.1,
    ):
        super().__init__()
        for name, size in (("num_layers", num_layers), ("hidden_dim", hidden_dim)):
            if size < 1:
                raise ValueError(f"{name}={size} was asked for; it must be at least 1.")
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
        """For the run's log."""
        return f"{self.lstm.num_layers} layers of {type(self).__name__}"

    def kernel_on(self, device: torch.device) -> str:
        """For the run's log."""
        return "torch"

    def forward(
        self, x: Float[Tensor, "b t i"], lengths: Lengths | None = None
    ) -> Float[Tensor, "b t e"]:
        """Every position at once; outputs at padding are zero."""
        if lengths is None or lengths.is_meta:  # shapes alone have no lengths
            return self.lstm(x)[0]
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, _ = self.lstm(packed)
        return pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])[0]
