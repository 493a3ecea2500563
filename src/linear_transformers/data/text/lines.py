"""Lines of text files, and pairs of them: every fault is named with its file and line."""

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from linear_transformers.config.messages import counted
from linear_transformers.data.text.pairs import Pair

COMPRESSED = ".gz"


def decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield lines as they come, without their ends.

    Args:
        lines: The lines.
        name: The name of their file, for messages.

    Raises:
        ValueError: A line is not UTF-8.
    """
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: byte {error.start + 1} is not UTF-8. Convert the file, "
                "by iconv -t UTF-8 for one."
            ) from error


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file, which may be compressed by gzip.

    Raises:
        ValueError: It cannot be read, or a line is not UTF-8.
    """
    opened = gzip.open if path.suffix == COMPRESSED else open
    try:
        with opened(path, "rb") as file:
            yield from decoded(file, str(path))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is damaged, or no gzip file"
        raise ValueError(f"{path} cannot be read: {reason}.") from error


def read_pairs(paths: Sequence[Path]) -> list[Pair]:
    """Read pairs of texts.

    Args:
        paths: Two files, whose lines belong together; or one, whose lines are a source, a tab and
            a target.

    Raises:
        ValueError: A file cannot be read, numbers of lines differ, or a side is empty.
    """
    if len(paths) == 1:
        return [*_of_tabs(paths[0])]
    if len(paths) != 2:
        raise ValueError(f"{len(paths)} files were given: pairs are in one, or in two.")
    sides = [[*lines_of(path)] for path in paths]
    fewer, more = sorted(zip(map(len, sides), paths, strict=True))
    if fewer[0] < more[0]:
        raise ValueError(
            f"{fewer[1]} has {counted(fewer[0], 'line')} and {more[1]} {more[0]}: line "
            f"{fewer[0] + 1} of the latter has no other side. Give files whose lines belong "
            "together."
        )
    pairs = [Pair(*texts) for texts in zip(*sides, strict=True)]
    for number, pair in enumerate(pairs, 1):
        for text, path in zip(pair, paths, strict=True):
            if not text.strip():
                raise ValueError(f"{path}, line {number} is empty. Take it out of both files.")
    return pairs


def _of_tabs(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(lines_of(path), 1):
        texts = line.split("\t")
        if len(texts) != 2:
            raise ValueError(
                f"{path}, line {number} has {len(texts) - 1} tabs: a source, a tab and a target "
                "are wanted."
            )
        if not all(text.strip() for text in texts):
            side = "source" if not texts[0].strip() else "target"
            raise ValueError(f"{path}, line {number} has an empty {side}. Take it out.")
        yield Pair(*texts)
