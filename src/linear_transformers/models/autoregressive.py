"""The image model of Katharopoulos et al. (2020), section 4.2: every value given those before.

The model reads tokens: the start token, then the values. Its output at a position are the
parameters of the distribution of the *next* value, so the first value is modelled too.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from linear_transformers.models.transformer import StackState, Transformer
from linear_transformers.ops.precision import without_autocast
from linear_transformers.shapes import Rows, Tokens, TokensOne


class AutoregressiveTransformer(nn.Module):
    """Tokens in, parameters of the next value's distribution out.

    Args:
        stack: Causal; its longest sequence is the longest of values.
        num_values: How many values there are; the start token comes on top.
        num_parameters: p, the width of the output.

    Raises:
        ValueError: The stack is not causal.
    """

    def __init__(self, stack: Transformer, *, num_values: int, num_parameters: int):
        super().__init__()
        if not stack.causal:
            raise ValueError(
                "model.causal=false was asked for: values that are drawn one after the other "
                "cannot see those to come. Use model.causal=true."
            )
        self.start_token = num_values
        self.tokens = nn.Embedding(num_values + 1, stack.input_dim)
        self.stack = stack
        self.head = nn.Linear(stack.model_dim, num_parameters)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    @property
    def row_multiple(self) -> int:
        """In multiples of so many, a sequence does not know what is beside it: CPU matrix
        products round a row differently when it comes in a batch of 1, 2 or 3 (or in what is
        left over from fours) than in fours."""
        return 4 if self.device.type == "cpu" else 1

    def example(self) -> tuple[Tokens]:
        """An input of full length, on the weights' device."""
        length = self.stack.positions.max_length
        return (torch.zeros(1, length or 1, dtype=torch.long, device=self.device),)

    def with_start(self, values: Tokens) -> Int[Tensor, "b t+1"]:
        """The tokens that stand before values: the start token in front."""
        return nn.functional.pad(values, (1, 0), value=self.start_token)

    def forward(self, tokens: Tokens) -> Float[Tensor, "b t p"]:
        """Every position at once. To train on values, give `with_start(values)[:, :-1]`."""
        return self._predict(self.stack(self.tokens(tokens)))

    def init_state(self, batch: int) -> StackState:
        """Nothing read yet, not even the start token. On the model's device, in its type."""
        return self.stack.init_state(batch)

    def step(
        self, token: TokensOne, state: StackState, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "b p"], StackState]:
        """Read one token a sequence; the parameters of the value that follows it. In place, the
        state that is given must not be used again."""
        x, state = self.stack.step(self.tokens(token), state, in_place=in_place)
        return self._predict(x), state

    def select(self, state: StackState, rows: Rows) -> StackState:
        """The state of some of the sequences; a row that is named twice is forked."""
        return self.stack.select(state, rows)

    def prefill(
        self, tokens: Tokens, state: StackState | None = None
    ) -> tuple[Float[Tensor, "b t p"], StackState]:
        """Read a whole stretch in parallel, after `state` if there is one."""
        x, state = self.stack.prefill(self.tokens(tokens), state)
        return self._predict(x), state

    def _predict(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch p"]:
        # Without autocast: means in bf16 are coarser than the gap between 256 levels.
        with without_autocast(x):
            return self.head(x.to(self.head.weight.dtype))
