"""Translation of lines of text, for translate.py."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from linear_transformers.config.ranges import NotNegative, Positive, Seed, Share, Size
from linear_transformers.data.text import decoded, lines_of
from linear_transformers.runs.sweeps import Outcome
from linear_transformers.tasks.base import Use, Watch
from linear_transformers.tasks.translation.judging import judged
from linear_transformers.tasks.translation.model import Translated, Translator

STANDARD_INPUT = "-"
BEAM = 5


@dataclass(kw_only=True)
class Translate(Use[Translator]):
    """Translate lines. See conf/translate.yaml for the options."""

    text: str
    references: str | None
    beam: Size | None
    length_penalty: NotNegative
    temperature: Positive | None
    top_p: Share | None
    seed: Seed
    batch: Size
    n: Size
    scores: bool

    def run(self, trained: Translator, watch: Watch) -> Outcome:
        """Print the translations of each line in their order."""
        self._check()
        live = self.text == STANDARD_INPUT
        lines = decoded(sys.stdin.buffer, "-") if live else lines_of(Path(self.text))
        references = None if self.references is None else [*lines_of(Path(self.references))]
        if references is not None:
            lines = iter(whole := [*lines])
            if len(whole) != len(references):
                raise ValueError(
                    f"{self.references} has {len(references)} lines, and text={self.text} "
                    f"{len(whole)}. Give one reference for each line."
                )
        start, best = time.perf_counter(), []
        for found in self._translations(trained, lines, 1 if live else self.batch):
            for text, score in found[: self.n]:
                print(f"{score:.4f}\t{text}" if self.scores else text, flush=live)
            best.append(found[0].text)
        took = time.perf_counter() - start
        print(f"{len(best)} lines in {took:.1f} s", file=sys.stderr)
        figures = {"lines": len(best), "seconds": round(took, 3)}
        for name, value, signature in judged(best, references) if references else ():
            print(f"{name} {value:.2f}  {signature}", file=sys.stderr)
            figures[name] = round(value, 2)
        return Outcome(None, figures)

    def _check(self) -> None:
        if self.temperature is None:
            if self.top_p is not None:
                raise ValueError(f"top_p={self.top_p} is of drawing. Give temperature=1 with it.")
            if self.beam is not None and self.n > self.beam:
                raise ValueError(
                    f"n={self.n} translations were asked for of a beam={self.beam}. "
                    f"Use beam={self.n}."
                )
        elif self.beam is not None:
            raise ValueError(
                f"beam={self.beam} is of a search, and temperature={self.temperature} of drawing. "
                "Give one of them."
            )

    def _translations(
        self, trained: Translator, lines: Iterator[str], together: int
    ) -> Iterator[list[Translated]]:
        """Yield the translations of each line, after so many lines were read."""
        first = 0
        while part := [*islice(lines, together)]:
            yield from self._decoding(trained, first)(part)
            first += len(part)

    def _decoding(
        self, trained: Translator, first: int
    ) -> Callable[[Sequence[str]], list[list[Translated]]]:
        """Return what translates lines, the first of which has a number."""
        if self.temperature is None:
            beam = self.beam or max(BEAM, self.n)
            options = {"beam": beam, "length_penalty": self.length_penalty}
            return partial(trained.translate, batch=self.batch, **options)
        options = {"n": self.n, "temperature": self.temperature, "top_p": self.top_p or 1.0}
        return partial(trained.draw, batch=self.batch, seed=self.seed, first=first, **options)
