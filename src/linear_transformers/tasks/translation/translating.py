"""Translation of lines of text, for translate.py."""

import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from linear_transformers.config.ranges import NotNegative, Size
from linear_transformers.data.text import decoded
from linear_transformers.runs.sweeps import Outcome
from linear_transformers.tasks.base import Use, Watch
from linear_transformers.tasks.translation.model import Translator

STANDARD_INPUT = "-"


@dataclass(kw_only=True)
class Translate(Use[Translator]):
    """Translate lines. See conf/translate.yaml for the options."""

    text: str
    beam: Size
    length_penalty: NotNegative
    batch: Size
    n: Size
    scores: bool

    def run(self, trained: Translator, watch: Watch) -> Outcome:
        """Print the translations of each line in their order."""
        if self.n > self.beam:
            raise ValueError(
                f"n={self.n} translations were asked for of a beam={self.beam}. Use beam={self.n}."
            )
        live = self.text == STANDARD_INPUT
        start, count = time.perf_counter(), 0
        with _opened(self.text) as file:
            lines = decoded(file, self.text)
            while part := [*islice(lines, 1 if live else self.batch)]:
                count += len(part)
                for found in trained.translate(
                    part, beam=self.beam, length_penalty=self.length_penalty, batch=self.batch
                ):
                    for text, score in found[: self.n]:
                        print(f"{score:.4f}\t{text}" if self.scores else text, flush=live)
        took = time.perf_counter() - start
        print(f"{count} lines in {took:.1f} s", file=sys.stderr)
        return Outcome(None, {"lines": count, "seconds": round(took, 3)})


def _opened(name: str) -> BinaryIO:
    if name == STANDARD_INPUT:
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ValueError(f"text={name} cannot be read: {error.strerror}.") from error
