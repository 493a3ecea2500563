"""A trained translator, as one calls it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from linear_transformers.config.ranges import Count, NotNegative, Positive, Seed, Share, ranged
from linear_transformers.data.text import END, START, PairShape, batch_of
from linear_transformers.distributions import Categorical
from linear_transformers.models import EncoderDecoder
from linear_transformers.sampling import Hypothesis, beam_search, draw, uniform_noise
from linear_transformers.shapes import Lengths
from linear_transformers.tasks.base import Trained

EXTRA = 50  # tokens by which a target may be longer than its source (Vaswani et al., section 6.1)


class Translated(NamedTuple):
    """A text that was found for a source, and its score: see `Hypothesis`."""

    text: str
    score: float


# Finds targets for each of some sources, given the state before the start, the greatest lengths,
# and the number of the first source.
Decoding = Callable[[EncoderDecoder, Any, Lengths, int], list[list[Hypothesis]]]
BATCH = 64


@dataclass(frozen=True)
class Translator(Trained):
    """A trained model of pairs of texts."""

    @ranged
    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: Count = 5,
        length_penalty: NotNegative = 0.6,
        batch: Count = BATCH,
    ) -> list[list[Translated]]:
        """Return what each text becomes: the best texts that were found, the best first.

        Args:
            texts: The texts.
            beam: The beam width; 1 is greedy decoding.
            length_penalty: See `beam_search`.
            batch: The largest number of texts side by side.

        Raises:
            ValueError: A number is out of range.
        """
        decode = searched(beam, length_penalty)
        return [*translations(self.task.model, self.task.shape, texts, decode, batch=batch)]

    @ranged
    def draw(
        self,
        texts: Sequence[str],
        *,
        n: Count = 1,
        temperature: Positive = 1.0,
        top_p: Share = 1.0,
        seed: Seed = 0,
        first: Seed = 0,
        batch: Count = BATCH,
    ) -> list[list[Translated]]:
        """Return texts that are drawn for each text.

        Args:
            texts: The texts.
            n: The number of draws for each.
            temperature: See `Categorical.sample`.
            top_p: See `Categorical.sample`.
            seed: The seed; a draw depends on it, and on the numbers of its text and its own.
            first: The number of the first text.
            batch: The largest number of texts side by side.

        Raises:
            ValueError: A number is out of range.
        """
        decode = drawn(n=n, temperature=temperature, top_p=top_p, seed=seed)
        options = {"first": first, "batch": batch}
        return [*translations(self.task.model, self.task.shape, texts, decode, **options)]


def searched(beam: int, length_penalty: float) -> Decoding:
    """Return the decoding of a beam search; see `beam_search`."""
    options = {"width": beam, "length_penalty": length_penalty}

    def decode(
        model: EncoderDecoder, state: Any, max_lengths: Lengths, first: int
    ) -> list[list[Hypothesis]]:
        return beam_search(model, state, max_lengths, start=START, end=END, **options)

    return decode


def drawn(*, n: int, temperature: float, top_p: float, seed: int) -> Decoding:
    """Return the decoding that draws; see `Translator.draw`."""

    def decode(
        model: EncoderDecoder, state: Any, max_lengths: Lengths, first: int
    ) -> list[list[Hypothesis]]:
        distribution = Categorical(model.head.out_features)
        count, longest = len(max_lengths), int(max_lengths.max())
        numbers = range(first * n, (first + count) * n)
        noise = uniform_noise(distribution, seed=seed, indices=numbers, length=longest)
        rows = torch.arange(count, device=model.device).repeat_interleave(n)
        found = draw(
            model,
            model.select(state, rows),
            max_lengths[rows],
            noise.to(model.device),
            start=START,
            end=END,
            sample=partial(distribution.sample, temperature=temperature, top_p=top_p),
        )
        return [found[i : i + n] for i in range(0, len(found), n)]

    return decode


@torch.inference_mode()
def translations(
    model: EncoderDecoder,
    shape: PairShape,
    texts: Sequence[str],
    decode: Decoding,
    *,
    first: int = 0,
    batch: int = BATCH,
) -> Iterator[list[Translated]]:
    """Yield what each of some texts becomes.

    Args:
        model: The model, in `eval()` mode.
        shape: The shape of its data.
        texts: The texts.
        decode: Finds their targets.
        first: The number of the first text.
        batch: The largest number of texts side by side.
    """
    tokenizer = shape.tokenizer
    for start in range(0, len(texts), batch):
        sources = [tokenizer.encode(text) for text in texts[start : start + batch]]
        padded = batch_of(sources, [[]] * len(sources))
        source, lengths = (x.to(model.device) for x in (padded.source, padded.source_lengths))
        state = model.init_state(model.summarize(source, lengths))
        for row in decode(model, state, lengths + EXTRA, first + start):
            yield [Translated(tokenizer.decode(each.tokens), each.score) for each in row]
