"""The recurrent network that transformers replaced, as a mixer: measured beside the others."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.attention.states import POSITION, SEQUENCE, check_past
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.mixers.base import Mixer
from linear_transformers.ops.precision import without_autocast
from linear_transformers.shapes import Hidden, HiddenOne


class LSTMState(NamedTuple):
    """The outputs at the last position, and the cells."""

    hidden: Float[Tensor, "b e"]
    cell: Float[Tensor, "b e"]


class LSTM(Mixer[LSTMState]):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), with forget gates (Gers et al.,
    2000), e wide.

    Positions are computed one after the other, in training too: a gate depends on the output before
    it, so there is no parallel form.

    Args:
        model_dim: The width of inputs, outputs and cells, e.
        num_heads: Without meaning here: there are no heads.
    """

    constant_state = True

    @ranged
    def __init__(self, model_dim: Size, num_heads: Size):
        super().__init__()
        self.cells = nn.LSTM(model_dim, model_dim, batch_first=True)

    def init_state(
        self,
        batch: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        capacity: int = 0,
    ) -> LSTMState:
        shape = (batch, self.cells.hidden_size)
        return LSTMState(*(torch.zeros(shape, device=device, dtype=dtype) for _ in range(2)))

    def step(
        self, x_i: HiddenOne, state: LSTMState, *, in_place: bool = False
    ) -> tuple[HiddenOne, LSTMState]:
        self.check_vectors(POSITION, x_i, self.cells.input_size)
        check_past(x_i, state.hidden, self.cells.hidden_size)
        # By the cell: a sequence of one position takes up to 16 times as long.
        weights = list(self.cells.parameters())
        before = [part.to(weights[0].dtype) for part in state]
        with without_autocast(x_i):
            hidden, cell = torch.lstm_cell(x_i.to(weights[0].dtype), before, *weights)
        return hidden.to(x_i.dtype), LSTMState(hidden, cell)

    def prefill(self, x: Hidden, state: LSTMState | None = None) -> tuple[Hidden, LSTMState]:
        self.check_vectors(SEQUENCE, x, self.cells.input_size)
        dtype = next(self.cells.parameters()).dtype
        if state is not None:
            check_past(x, state.hidden, self.cells.hidden_size)
        before = None if state is None else tuple(part.unsqueeze(0).to(dtype) for part in state)
        with without_autocast(x):
            y, (hidden, cell) = self.cells(x.to(dtype), before)
        return y.to(x.dtype), LSTMState(hidden.squeeze(0), cell.squeeze(0))
