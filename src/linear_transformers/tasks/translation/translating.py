"""Translation of lines of text, for translate.py."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from linear_transformers.config.ranges import NotNegative, Size
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
            lines = lines_of(file, self.text)
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


def lines_of(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a file as they come, without their ends.

    Args:
        file: The file.
        name: Its name, for messages.

    Raises:
        ValueError: A line is not UTF-8.
    """
    for number, line in enumerate(file, 1):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: byte {error.start + 1} is not UTF-8. Convert the file, "
                "by iconv -t UTF-8 for one."
            ) from error


def _opened(name: str) -> BinaryIO:
    if name == STANDARD_INPUT:
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ValueError(f"text={name} cannot be read: {error.strerror}.") from error
