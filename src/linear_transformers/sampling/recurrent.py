"""The model's own step, and the paper's baseline, which recomputes everything."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.sampling.stepper import Stepper
from linear_transformers.shapes import Rows, Tokens, TokensOne


class RecurrentStepper(Stepper):
    """The model's own step, in PyTorch."""

    name: ClassVar[str] = "recurrent"

    def step(self, token: TokensOne, state: Any) -> tuple[Float[Tensor, "b p"], Any]:
        return self.model.step(token, state)


class RecomputedStepper(Stepper):
    """The paper's slow baseline: each step runs `forward` on everything.

    The state is the tokens so far. A step costs as much as `forward` on the whole sequence.
    """

    name: ClassVar[str] = "recomputed"

    def __init__(self, model: AutoregressiveTransformer, precision: str | None = None):
        super().__init__(model, precision)
        self.description = f"{self.name}, {model.stack.kernel_on(self.device)}"

    def prefill(
        self, tokens: Tokens, state: Int[Tensor, "b before"] | None = None
    ) -> tuple[Float[Tensor, "b t p"], Int[Tensor, "b after"]]:
        read = tokens if state is None else torch.cat([state, tokens], dim=1)
        outputs = self.model.forward(read)  # in PyTorch, of a model that training has compiled, too
        return outputs[:, read.shape[1] - tokens.shape[1] :], read

    def step(
        self, token: TokensOne, state: Int[Tensor, "b before"]
    ) -> tuple[Float[Tensor, "b p"], Int[Tensor, "b after"]]:
        parameters, state = self.prefill(token.unsqueeze(1), state)
        return parameters[:, -1], state

    def select(self, state: Tokens, rows: Rows) -> Int[Tensor, "r t"]:
        return state[rows]
