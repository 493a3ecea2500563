"""A trained translator, as one calls it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from linear_transformers.config.ranges import Count, Positive, Power, Seed, Share, ranged
from linear_transformers.data.text import END, START, PairShape, batch_of
from linear_transformers.distributions import Categorical
from linear_transformers.models import EncoderDecoder, StackState
from linear_transformers.models.dropout import check_eval
from linear_transformers.sampling import Hypothesis, beam_search, draw, uniform_noise
from linear_transformers.sampling.decoding import LENGTH_PENALTY, WIDTH
from linear_transformers.shapes import Lengths
from linear_transformers.tasks.base import Trained

# The tokens by which a target may be longer than its source (Vaswani et al., section 6.1), where
# none that was trained on is.
EXTRA = 50
SHOWN = 40  # characters of a text, where it is named


class Translated(NamedTuple):
    """A text that was found for a source, and its score: see `Hypothesis`."""

    text: str
    score: float


class Search(NamedTuple):
    """Decoding by a beam search; see `beam_search`."""

    beam: int = WIDTH
    length_penalty: float = LENGTH_PENALTY

    @property
    def number(self) -> int:
        """The number of targets that are found for each source."""
        return self.beam

    def __call__(
        self, model: EncoderDecoder, state: StackState, max_lengths: Lengths, names: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """Return the targets of each source.

        Args:
            model: The model.
            state: The state of each source before the start token.
            max_lengths: The greatest length of each target.
            names: The number of each source among all texts.
        """
        options = {"width": self.beam, "length_penalty": self.length_penalty}
        return beam_search(model, state, max_lengths, start=START, end=END, **options)


class Sampling(NamedTuple):
    """Decoding by drawing; see `Translator.draw`."""

    number: int
    temperature: float
    top_p: float
    seed: int

    def __call__(
        self, model: EncoderDecoder, state: StackState, max_lengths: Lengths, names: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """Return the targets of each source; see `Search`."""
        distribution = Categorical(model.head.out_features)
        # As many draws as one likes do not change the others.
        indices = [(k << 32) + name for name in names for k in range(self.number)]
        noise = uniform_noise(
            distribution, seed=self.seed, indices=indices, length=int(max_lengths.max())
        )
        sources = torch.arange(len(names), device=model.device)
        rows = sources.repeat_interleave(self.number)
        found = draw(
            model,
            model.select(state, rows, sources),
            max_lengths[rows],
            noise.to(model.device),
            start=START,
            end=END,
            sample=partial(distribution.sample, temperature=self.temperature, top_p=self.top_p),
        )
        return [found[i : i + self.number] for i in range(0, len(found), self.number)]


Decoding = Search | Sampling
BATCH = 64


@dataclass(frozen=True, eq=False)
class Translator(Trained):
    """A trained model of pairs of texts."""

    @ranged
    def translate(
        self,
        texts: Iterable[str],
        *,
        beam: Count = WIDTH,
        length_penalty: Power = LENGTH_PENALTY,
        batch: Count = BATCH,
    ) -> list[list[Translated]]:
        """Return what each text becomes: the best texts that were found, the best first.

        Args:
            texts: The texts.
            beam: The beam width; 1 is greedy decoding.
            length_penalty: See `beam_search`.
            batch: The largest number of texts side by side.

        Raises:
            ValueError: A number is out of range, or a text has a character that no training text
                had; or see `translations`.
        """
        return self._translations(texts, Search(beam, length_penalty), batch=batch)

    @ranged
    def draw(
        self,
        texts: Iterable[str],
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
            ValueError: A number is out of range, or a text has a character that no training text
                had; or see `translations`.
        """
        drawing = Sampling(n, temperature, top_p, seed)
        return self._translations(texts, drawing, first=first, batch=batch)

    def check(self, text: str) -> None:
        """Refuse a text that the model cannot read. It reads nothing of one without a character.

        Raises:
            ValueError: It has a character that no training text had.
        """
        if text.strip():
            self.task.shape.tokenizer.encode_known(text, repr(text[:SHOWN]))

    def _translations(
        self, texts: Iterable[str], decoding: Decoding, **options: int
    ) -> list[list[Translated]]:
        """Return what `translations` makes of texts of a user's, which can be read."""
        for text in (texts := _listed(texts)):
            self.check(text)
        return translations(self.task.model, self.task.shape, texts, decoding, **options)


@torch.inference_mode()
def translations(
    model: EncoderDecoder,
    shape: PairShape,
    texts: Iterable[str],
    decoding: Decoding,
    *,
    first: int = 0,
    batch: int = BATCH,
) -> list[list[Translated]]:
    """Return what each of some texts becomes. Texts of similar length are side by side.

    An empty text becomes an empty one: no model has seen any. A text that does not end is cut: at
    the length of the longest that was trained on, or at `EXTRA` more than its source's.

    Args:
        model: The model, in `eval()` mode.
        shape: The shape of its data.
        texts: The texts.
        decoding: Finds their targets.
        first: The number of the first text.
        batch: The largest number of texts side by side.

    Raises:
        ValueError: A text was given, and no list of them; or the model is in `train()` mode.
    """
    check_eval(model)
    texts = _listed(texts)
    tokenizer = shape.tokenizer
    sources = [tokenizer.encode(text) if text.strip() else [] for text in texts]
    found = [[Translated("", 0.0)] * decoding.number for _ in texts]
    order = sorted((i for i, source in enumerate(sources) if source), key=lambda i: len(sources[i]))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        padded = batch_of([sources[i] for i in chosen], [[]] * len(chosen))
        source, lengths = (x.to(model.device) for x in (padded.source, padded.source_lengths))
        state = model.init_state(model.summarize(source, lengths))
        longest = (lengths + EXTRA).clamp(min=shape.longest)
        rows = decoding(model, state, longest, [first + i for i in chosen])
        for i, row in zip(chosen, rows, strict=True):
            found[i] = [Translated(tokenizer.decode(each.tokens), each.score) for each in row]
    return found


def _listed(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise ValueError("A text was given, and a list of texts is translated: give [text].")
    return [*texts]
