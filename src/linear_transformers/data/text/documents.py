"""Documents as tokens, one after the other: in memory, or in a file that is mapped into it."""

import itertools
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from linear_transformers.data.cache import cached, state_of
from linear_transformers.data.text.tokens import END, SPECIAL, Bytes, Tokenizer

VERSION = 2  # of the tokens: increase it when their computation changes
IN_MEMORY = 2**26  # bytes of text, of which the tokens take up to four times as many
AT_ONCE = 2**20  # bytes that are read


class Document(NamedTuple):
    """A text: a file, or a part of one.

    Attributes:
        path: The file.
        start: The place of its first byte.
        stop: The place after its last byte.
    """

    path: Path
    start: int
    stop: int

    @classmethod
    def of(cls, path: Path) -> "Document":
        """Return a whole file as a document, without the mark at its beginning that some have."""
        with path.open("rb") as file:
            marked = file.read(len(BOM_UTF8)) == BOM_UTF8
        return cls(path, len(BOM_UTF8) if marked else 0, path.stat().st_size)

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.stop - self.start

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes, up to about a million at a time, lines and characters whole."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            rest, left = b"", self.size
            while left > 0:
                read = file.read(min(AT_ONCE, left))
                if not read:
                    break  # the file has become shorter
                left -= len(read)
                cut = _last_break(rest + read) if left else len(rest + read)
                whole, rest = (rest + read)[:cut], (rest + read)[cut:]
                if whole:
                    yield whole

    def texts(self) -> Iterator[str]:
        """Yield the same as text.

        Raises:
            ValueError: It is not UTF-8.
        """
        for part in self.parts():
            try:
                yield part.decode()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{self.path} is not UTF-8. Use data.tokens=bytes, which takes it as it is, or "
                    "convert it, by iconv -t UTF-8 for one."
                ) from error


class Documents(NamedTuple):
    """The tokens of documents, an end token after each.

    Attributes:
        tokens: The tokens of all, in memory or in a file.
        ends: The place in `tokens` after each document's end token.
    """

    tokens: Integer[np.ndarray, " tokens"]
    ends: Integer[np.ndarray, " documents"]

    @property
    def starts(self) -> Integer[np.ndarray, " documents"]:
        """The place of each document's first token."""
        return np.concatenate([[0], self.ends[:-1]])


def documents_of(
    texts: Sequence[Document], tokenizer: Tokenizer, about: str, cache: Path
) -> Documents:
    """Return documents as tokens. Those of large texts are in a file, made at the first use ever.

    A file's key is a hash of the texts' paths, sizes and times, and of the tokenizer.

    Args:
        texts: The documents, in order.
        tokenizer: The tokenizer.
        about: What makes the tokenizer what it is.
        cache: The folder of all such files.

    Raises:
        ValueError: See `Document.texts`.
    """
    if sum(text.size for text in texts) <= IN_MEMORY:
        made = [np.concatenate([*_tokens_of(text, tokenizer)]) for text in texts]
        return Documents(np.concatenate(made), np.cumsum([len(each) for each in made]))
    facts = ([*text[1:], *state_of(text.path)] for text in texts)
    tokens, sizes = cached(
        cache,
        "tokens",
        itertools.chain([[VERSION, about]], facts),
        lambda: (_tokens_of(text, tokenizer) for text in texts),
        np.empty(0, _dtype(tokenizer)),
    )
    return Documents(tokens, np.cumsum(sizes))


def _tokens_of(text: Document, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Yield the tokens of a document, its end token last."""
    dtype = _dtype(tokenizer)
    if isinstance(tokenizer, Bytes):
        for part in text.parts():
            yield np.frombuffer(part, np.uint8) + dtype(SPECIAL)
    else:
        for part in text.texts():
            yield np.asarray(tokenizer.encode(part), dtype)
    yield np.array([END], dtype)


def _dtype(tokenizer: Tokenizer) -> type[np.unsignedinteger]:
    return np.uint16 if tokenizer.num_tokens <= 2**16 else np.uint32


def _last_break(read: bytes) -> int:
    """Return the place after the last line, or else the last character, that is whole."""
    if line := read.rfind(b"\n") + 1:
        return line
    last = len(read) - 1
    while last > max(0, len(read) - 4) and read[last] & 0xC0 == 0x80:  # within a character
        last -= 1
    return last if read[last] >= 0xC0 else len(read)
