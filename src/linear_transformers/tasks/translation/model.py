"""A trained translator, as one calls it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from linear_transformers.config.ranges import Count, NotNegative, ranged
from linear_transformers.data.text import END, START, PairShape, batch_of
from linear_transformers.models import EncoderDecoder
from linear_transformers.sampling.beam import beam_search
from linear_transformers.tasks.base import Trained

EXTRA = 50  # tokens by which a target may be longer than its source (Vaswani et al., section 6.1)


class Translated(NamedTuple):
    """A text that was found for a source, and its score: see `beam_search`."""

    text: str
    score: float


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
        batch: Count = 64,
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
        options = {"beam": beam, "length_penalty": length_penalty}
        found: list[list[Translated]] = []
        for start in range(0, len(texts), batch):
            part = texts[start : start + batch]
            found += translations(self.task.model, self.task.shape, part, **options)
        return found


@torch.inference_mode()
def translations(
    model: EncoderDecoder,
    shape: PairShape,
    texts: Sequence[str],
    *,
    beam: int,
    length_penalty: float,
) -> Iterator[list[Translated]]:
    """Yield what each of some texts becomes; see `Translator.translate`."""
    tokenizer = shape.tokenizer
    sources = [tokenizer.encode(text) for text in texts]
    batch = batch_of(sources, [[]] * len(sources))
    source, lengths = (x.to(model.device) for x in (batch.source, batch.source_lengths))
    found = beam_search(
        model,
        model.init_state(model.summarize(source, lengths)),
        lengths + EXTRA,
        start=START,
        end=END,
        width=beam,
        length_penalty=length_penalty,
    )
    for row in found:
        yield [Translated(tokenizer.decode(each.tokens), each.score) for each in row]
