"""The encoder-decoder of Vaswani et al. (2017): from the tokens of a source to those of a target.

The encoder reads the source once; each layer of the decoder keeps a memory of it. From there on
the decoder is a recurrent network: where its attentions are linear, a step costs the same however
long source and target are.
"""

from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers.attention.states import count_of
from linear_transformers.config.ranges import Size, ranged
from linear_transformers.models.dropout import number
from linear_transformers.models.transformer import Head, StackState, Transformer
from linear_transformers.shapes import (
    Hidden,
    Lengths,
    Rows,
    Sources,
    SourceTokens,
    Tokens,
    TokensOne,
)

EXAMPLE_LENGTH = 32  # of a sentence


class EncoderDecoder(nn.Module):
    """A model from a source and the tokens so far to the scores of the next token.

    Embeddings have a variance of 1 / e and are scaled by sqrt(e), so that they are as large as
    sinusoids and the output layer can share them (Vaswani et al., section 3.4).

    Args:
        encoder: The stack that reads the source: not causal.
        decoder: The stack that reads the target: causal, and made with `cross`.
        num_tokens: The number of different tokens, v.
        shared_embeddings: Whether source, target and output have one matrix between them.

    Raises:
        ValueError: The encoder is causal, the decoder has no `cross`, their widths differ, or
            shared embeddings are of several widths.
    """

    @ranged
    def __init__(
        self,
        encoder: Transformer,
        decoder: Transformer,
        num_tokens: Size,
        *,
        shared_embeddings: bool = True,
    ):
        super().__init__()
        if encoder.causal:
            raise ValueError(
                "The encoder has causal=True. It must see the whole source: give it causal=False."
            )
        if not decoder.is_decoder:
            raise ValueError("The decoder has no `cross`, and cannot see the source. Give it one.")
        if encoder.model_dim != decoder.model_dim:
            raise ValueError(
                f"The encoder has model_dim={encoder.model_dim} and the decoder "
                f"model_dim={decoder.model_dim}. Give both the same."
            )
        widths = {encoder.input_dim, decoder.input_dim, decoder.model_dim}
        if shared_embeddings and len(widths) > 1:
            raise ValueError(
                f"shared_embeddings=true needs vectors of one width; these have {sorted(widths)}. "
                "Use positions=added, or shared_embeddings=false."
            )
        self.encoder = encoder
        self.decoder = decoder
        self.source_tokens = _embedding(num_tokens, encoder.input_dim)
        self.target_tokens = self.source_tokens
        self.head = Head(decoder.model_dim, num_tokens, bias=False)
        if shared_embeddings:
            self.head.weight = self.source_tokens.weight
        else:
            self.target_tokens = _embedding(num_tokens, decoder.input_dim)
        number(self)  # both stacks draw from the same seeds

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.head.weight.device

    def example(self) -> tuple[Tokens, SourceTokens, Lengths]:
        """Return an input of usual length, on the device of the weights."""
        tokens = torch.zeros(1, EXAMPLE_LENGTH, dtype=torch.long, device=self.device)
        return tokens, tokens, torch.full((1,), EXAMPLE_LENGTH, device=self.device)

    def summarize(self, source: SourceTokens, lengths: Lengths | None = None) -> tuple[Any, ...]:
        """Return the memory that each layer of the decoder keeps of a source.

        Args:
            source: The tokens of the source.
            lengths: The length of each source, at least 1; None is all of it. Padding is ignored.
        """
        encoded = self.encoder(_scaled(self.source_tokens, source), lengths)
        return self.decoder.summarize(encoded, lengths)

    def forward(
        self,
        tokens: Tokens,
        source: SourceTokens,
        lengths: Lengths | None = None,
        *,
        scored: bool = True,
    ) -> Float[Tensor, "b t v"] | Hidden:
        """Return the scores of the token after each one of the target, computed in parallel.

        Args:
            tokens: The tokens of the target, from the start token on.
            source: See `summarize`.
            lengths: See `summarize`.
            scored: Whether to return scores; else what the head computes them from.
        """
        memories = self.summarize(source, lengths)
        x = self.decoder(_scaled(self.target_tokens, tokens), memories=memories)
        return self.head(x) if scored else x

    def init_state(self, memories: tuple[Any, ...]) -> StackState:
        """Return the state before the start token: all that is left of the source."""
        return self.decoder.init_state(count_of(memories[0]), memories)

    def step(
        self, token: TokensOne, state: StackState, *, in_place: bool = False
    ) -> tuple[Float[Tensor, "b v"], StackState]:
        """Return the scores of the token after the given one, and the state that includes it.

        With `in_place`, the given state may be overwritten and must not be used again.
        """
        x, state = self.decoder.step(_scaled(self.target_tokens, token), state, in_place=in_place)
        return self.head(x), state

    def select(self, state: StackState, rows: Rows, sources: Sources | None = None) -> StackState:
        """Return the state of some of the sequences; see `Transformer.select`."""
        return self.decoder.select(state, rows, sources)

    def prefill(
        self, tokens: Tokens, state: StackState
    ) -> tuple[Float[Tensor, "b t v"], StackState]:
        """Return the scores after each of the tokens that follow `state`, and the new state."""
        x, state = self.decoder.prefill(_scaled(self.target_tokens, tokens), state)
        return self.head(x), state

    def weights(self, tokens: Tokens, source: SourceTokens) -> Float[Tensor, "layers b h t s"]:
        """Return the share of each position of the source in what each layer reads from it.

        Args:
            tokens: See `forward`.
            source: The tokens of sources of one length.
        """
        encoded = self.encoder(_scaled(self.source_tokens, source))
        memories = self.decoder.summarize(encoded)
        read: list[Hidden] = []
        crosses = [block.cross for block in self.decoder.decoder_blocks]
        with ExitStack() as hooks:
            for cross in crosses:
                hook = cross.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
                hooks.enter_context(hook)
            self.decoder(_scaled(self.target_tokens, tokens), memories=memories)
        return torch.stack(
            [cross.weights(x, encoded) for cross, x in zip(crosses, read, strict=True)]
        )


def _embedding(num_tokens: int, width: int) -> nn.Embedding:
    embedding = nn.Embedding(num_tokens, width)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    return embedding


def _scaled(embedding: nn.Embedding, tokens: Tensor) -> Float[Tensor, "*batch i"]:
    return embedding(tokens) * embedding.embedding_dim**0.5
