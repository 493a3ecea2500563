"""Texts as their tokens are drawn, of which nothing is shown that may still change."""

import codecs
import io
import math
from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from jaxtyping import Int
from torch import Tensor

from linear_transformers.data.text import END, START, UNKNOWN, Tokenizer
from linear_transformers.distributions import ValueDistribution
from linear_transformers.sampling import Sampler, Stepper, generate


class Continuation:
    """The text that tokens make, one after the other.

    Bytes that are not yet a character are held back, and so is what may begin a stop string.

    Args:
        pieces: The bytes of each token: see `Tokenizer.pieces`.
        stop: The strings at the first of which the text ends; it is not part of the text.

    Raises:
        ValueError: A stop string is empty.

    Attributes:
        ending: Why the text has ended; None while it goes on.
        tokens: The number of tokens so far, the one that ended the text among them.
    """

    def __init__(self, pieces: Sequence[bytes], stop: Sequence[str] = ()):
        if "" in stop:
            raise ValueError("stop='' is in every text, before its first token. Leave it out.")
        self.pieces = pieces
        self.stop = stop
        self.ending: str | None = None
        self.tokens = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._text = io.StringIO()  # of a text without end, a list would take much more memory

    @property
    def text(self) -> str:
        """The text so far."""
        return self._text.getvalue()

    def read(self, token: int) -> str:
        """Read a token, and return what it adds to the text. After its end, that is nothing."""
        if self.ending is not None:
            return ""
        self.tokens += 1
        if token == END:
            return self.end("the document ended")
        self._held += self._decoder.decode(self.pieces[token])
        found = [(place, stop) for stop in self.stop if (place := self._held.find(stop)) >= 0]
        if found:
            place, stop = min(found)
            self.ending = f"stop={stop!r}"
            return self._add(self._held[:place])
        return self._add(self._held[: len(self._held) - self._in_doubt()])

    def end(self, why: str) -> str:
        """End the text, if it has not ended, and return what was held back."""
        if self.ending is not None:
            return ""
        self.ending = why
        return self._add(self._held + self._decoder.decode(b"", final=True))

    def _add(self, text: str) -> str:
        self._held = self._held[len(text) :]
        self._text.write(text)
        return text

    def _in_doubt(self) -> int:
        """Return the length of the longest end of what is held that begins a stop string."""
        lengths = range(min(len(self._held), max(map(len, self.stop), default=1) - 1), 0, -1)
        begins = (n for n in lengths if any(x.startswith(self._held[-n:]) for x in self.stop))
        return next(begins, 0)


def continued(
    stepper: Stepper,
    distribution: ValueDistribution,
    tokenizer: Tokenizer,
    prompt: Int[Tensor, " t"],
    *,
    sample: Sampler,
    n: int,
    seed: int,
    end: bool = True,
    stop: Sequence[str] = (),
) -> Iterator[tuple[list[str], list[Continuation]]]:
    """Return an iterator over what each next token adds to n texts, and the texts, until all have
    ended.

    Args:
        stepper: The stepper of a model of texts.
        distribution: The distribution of a token.
        tokenizer: The tokenizer.
        prompt: The tokens before the texts.
        sample: Draws a token.
        n: The number of texts.
        seed: See `generate`.
        end: Whether the model may end a text.
        stop: See `Continuation`.

    Raises:
        ValueError: See `Continuation`.
    """
    pieces = tokenizer.pieces
    mask = torch.zeros(len(pieces), device=stepper.device)
    mask[[START, UNKNOWN, *([] if end else [END])]] = -math.inf

    def draw(parameters: Tensor, noise: Tensor) -> Tensor:
        return sample(parameters + mask, noise)

    texts = [Continuation(pieces, stop) for _ in range(n)]  # now: options may be refused

    def added() -> Iterator[tuple[list[str], list[Continuation]]]:
        for drawn in generate(stepper, distribution, prompt, sample=draw, n=n, seed=seed):
            yield [text.read(t) for text, t in zip(texts, drawn.tolist(), strict=True)], texts
            if all(text.ending for text in texts):
                return

    return added()


def whole(continuations: Iterator[tuple[list[str], list[Continuation]]], length: int) -> list[str]:
    """Return what `continued` yields as whole texts, of so many tokens at most."""
    *_, (_, texts) = islice(continuations, length)
    for text in texts:
        text.end("its length")
    return [text.text for text in texts]
