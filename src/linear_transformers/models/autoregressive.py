"""A model of every value given those before: Katharopoulos et al. (2020), section 4.2, of images.

The model reads tokens: the start token, then the values. Its outputs at a position are the
parameters of the *next* value's distribution, so the first value is modelled too.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from linear_transformers.models.transformer import Head, StackState, Transformer
from linear_transformers.ops.pieces import Piece
from linear_transformers.shapes import Rows, Tokens, TokensOne


class AutoregressiveTransformer(nn.Module):
    """A model from tokens to the parameters of the next value's distribution.

    Args:
        stack: The causal stack, whose `max_length` is that of the sequences of values.
        num_values: The number of values, without the start token.
        num_parameters: The width of the output, p.

    Raises:
        ValueError: The stack is not causal.
    """

    def __init__(self, stack: Transformer, *, num_values: int, num_parameters: int):
        super().__init__()
        if not stack.causal:
            raise ValueError(
                "The model sees later values, by model.causal=false; an autoregressive one must "
                "not. Use model.causal=true."
            )
        self.start_token = num_values
        self.tokens = nn.Embedding(num_values + 1, stack.input_dim)
        self.stack = stack
        self.head = Head(stack.model_dim, num_parameters)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.head.weight.device

    @property
    def row_multiple(self) -> int:
        """The number whose multiples batches are padded to, so that results do not depend on the
        rest of the batch: products of fewer rows are summed in another order on CPUs. 16 rows are
        enough for layers of up to 512 inputs, and to batches of 128 for those of 1,024, measured on
        one of Intel's."""
        return 16 if self.device.type == "cpu" else 1

    def example(self) -> tuple[Tokens]:
        """Return an input of full length, on the device of the weights."""
        length = self.stack.positions.max_length
        return (torch.zeros(1, length or 1, dtype=torch.long, device=self.device),)

    def with_start(self, values: Tokens) -> Int[Tensor, "b t+1"]:
        """Return the values with the start token in front."""
        return nn.functional.pad(values, (1, 0), value=self.start_token)

    def forward(self, tokens: Tokens, piece: Piece | None = None) -> Float[Tensor, "b t p"]:
        """Return the parameters after each token; to train, pass `with_start(values)[:, :-1]`.

        Args:
            tokens: The tokens.
            piece: See `Transformer.forward`.
        """
        return self.head(self.stack(self.tokens(tokens), piece=piece))

    def init_state(self, batch: int) -> StackState:
        """Return the initial (empty) state: not even the start token is read."""
        return self.stack.init_state(batch)

    def step(
        self, token: TokensOne, state: StackState, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "b p"], StackState]:
        """Return the parameters after one token of each sequence, and the state that includes it.

        With `in_place`, the given state may be overwritten and must not be used again.
        """
        x, state = self.stack.step(self.tokens(token), state, in_place=in_place)
        return self.head(x), state

    def select(self, state: StackState, rows: Rows) -> StackState:
        """Return the state of some of the sequences; a row named twice is forked."""
        return self.stack.select(state, rows)

    def prefill(
        self, tokens: Tokens, state: StackState | None = None
    ) -> tuple[Float[Tensor, "b t p"], StackState]:
        """Return the parameters after each of the tokens that follow `state`, and the new state."""
        x, state = self.stack.prefill(self.tokens(tokens), state)
        return self.head(x), state
