"""Translation of lines of text, for translate.py."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

from linear_transformers.config.messages import counted
from linear_transformers.config.ranges import Positive, Power, Seed, Share, Size
from linear_transformers.data.text import decoded, lines_of
from linear_transformers.pictures.texts import write
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.sampling.decoding import LENGTH_PENALTY, WIDTH
from linear_transformers.tasks.base import Use, Watch
from linear_transformers.tasks.translation.judging import judged
from linear_transformers.tasks.translation.model import Translated, Translator

STANDARD_INPUT = "-"
BATCHES = 16  # of lines that are read before they are sorted by length


@dataclass(kw_only=True)
class Translate(Use[Translator]):
    """Translate lines. See conf/translate.yaml for the options."""

    needs: ClassVar = ("text=-",)
    text: str
    references: str | None
    beam: Size | None
    length_penalty: Power | None
    temperature: Positive | None
    top_p: Share | None
    seed: Seed
    batch: Size
    n: Size
    scores: bool

    def run(self, trained: Translator, watch: Watch) -> Outcome:
        """Print the translations of each line in their order."""
        self._check()
        piped = self.text == STANDARD_INPUT
        lines = decoded(sys.stdin.buffer, "text=-") if piped else lines_of(Path(self.text))
        references = None
        if self.references is not None:
            references, whole = [*lines_of(Path(self.references))], [*lines]
            if len(whole) != len(references):
                raise ValueError(
                    f"{self.references} has {len(references)} lines, and text={self.text} "
                    f"{len(whole)}. Give one reference for each line."
                )
            lines = iter(whole)
        live = piped and references is None
        start, count, best = time.perf_counter(), 0, []
        lines = self._readable(trained, lines)
        for found in self._translations(trained, lines, 1 if live else BATCHES * self.batch):
            count += 1
            for text, score in found[: self.n]:
                line = " ".join(text.splitlines())  # each on a line of its own
                write(f"{score:.4f}\t{line}\n" if self.scores else f"{line}\n")
            if references is not None:
                best.append(found[0].text)
        took = time.perf_counter() - start
        print(f"{counted(count, 'line')} in {took:.1f} s", file=sys.stderr)
        figures = {"lines": count, "seconds": round(took, 3)}
        for name, value, signature in judged(best, references) if references else ():
            print(f"{name} {value:.2f}  {signature}", file=sys.stderr)
            figures[name] = round(value, 2)
        return Outcome(None, figures)

    def _check(self) -> None:
        """Refuse options that do not go together."""
        if self.temperature is None:
            if self.top_p is not None:
                raise ValueError(
                    f"top_p={self.top_p} applies to sampling only. Give temperature=1 with it."
                )
            if self.beam is not None and self.n > self.beam:
                raise ValueError(f"n={self.n} exceeds beam={self.beam}. Use beam={self.n}.")
            return
        for name in ("beam", "length_penalty"):
            if (value := getattr(self, name)) is not None:
                raise ValueError(
                    f"{name}={value} applies to beam search only, and "
                    f"temperature={self.temperature} asks for sampling. Leave one out."
                )

    def _readable(self, trained: Translator, lines: Iterator[str]) -> Iterator[str]:
        """Yield the lines, and say of one that the model cannot read which it is."""
        for number, line in enumerate(lines, 1):
            try:
                trained.check(line)
            except ValueError as error:
                raise ValueError(f"text={self.text}, line {number}: {error}") from error
            yield line

    def _translations(
        self, trained: Translator, lines: Iterator[str], together: int
    ) -> Iterator[list[Translated]]:
        """Yield the translations of each line, after so many lines were read."""
        first = 0
        while part := [*islice(lines, together)]:
            yield from self._translated(trained, part, first)
            first += len(part)

    def _translated(
        self, trained: Translator, lines: Sequence[str], first: int
    ) -> list[list[Translated]]:
        """Return the translations of lines, the first of which has a number."""
        if self.temperature is None:
            penalty = LENGTH_PENALTY if self.length_penalty is None else self.length_penalty
            beam = self.beam or max(WIDTH, self.n)
            return trained.translate(lines, beam=beam, length_penalty=penalty, batch=self.batch)
        options = {"n": self.n, "temperature": self.temperature, "top_p": self.top_p or 1.0}
        return trained.draw(lines, batch=self.batch, seed=self.seed, first=first, **options)
