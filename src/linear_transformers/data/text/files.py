"""Pairs of texts in files: one's own, and Multi30k."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linear_transformers.config.ranges import Count, Part, ranged
from linear_transformers.data.base import Split, place_of
from linear_transformers.data.text.lines import COMPRESSED, read_pairs
from linear_transformers.data.text.pairs import Pair, PairSource


class PairFiles(PairSource):
    """Pairs in files of lines: two whose lines belong together, or one with tabs; see `read_pairs`.

    Args:
        batch_tokens: See `PairSource`.
        train: The training pairs: the path of a file, or two.
        test: The test pairs.
        val: The validation pairs; None holds out a share of `train`.
        val_share: The share of `train` to hold out if `val` is None: by a hash of the sources, all
            pairs of one together.
        options: See `PairSource`.

    Raises:
        ValueError: See `PairSource` and `read_pairs`.
    """

    @ranged
    def __init__(
        self,
        batch_tokens: Count = 4096,
        *,
        train: str | Sequence[str],
        test: str | Sequence[str],
        val: str | Sequence[str] | None = None,
        val_share: Part = 0.05,
        **options: Any,
    ):
        super().__init__(batch_tokens, **options)
        given = {"train": train, "val": val, "test": test}
        self.paths = {name: _paths(each) for name, each in given.items() if each is not None}
        self.val_share = val_share

    def read(self, split: Split) -> list[Pair]:
        if split == "test" or "val" in self.paths:
            return read_pairs(self.paths[split])
        pairs = read_pairs(self.paths["train"])
        sources = sorted(dict.fromkeys(pair.source for pair in pairs), key=place_of)
        if len(sources) == 1:  # by place: a trial, as a rule
            border = max(1, round(self.val_share * len(pairs)))
            return pairs[:border] if split == "val" else pairs[border:]
        count = min(max(1, round(self.val_share * len(sources))), len(sources) - 1)  # never all
        held_out = {*sources[:count]}
        return [pair for pair in pairs if (pair.source in held_out) == (split == "val")]


class Multi30k(PairSource):
    """Captions of pictures in several languages (Elliott et al., 2016): 29,000 training pairs.

    Args:
        path: The folder of files such as `train.de.gz`, compressed or not.
        batch_tokens: See `PairSource`.
        source: The language to translate from: `en`, `de`, `fr`.
        target: The language to translate to.
        test: The test split.
        options: See `PairSource`.
    """

    @ranged
    def __init__(
        self,
        path: str,
        batch_tokens: Count = 4096,
        *,
        source: str = "en",
        target: str = "de",
        test: str = "test_2016_flickr",
        **options: Any,
    ):
        super().__init__(batch_tokens, **options)
        self.path = Path(path)
        self.languages = (source, target)
        self.names = {"train": "train", "val": "val", "test": test}

    def read(self, split: Split) -> list[Pair]:
        name = self.names[split]
        return read_pairs([_found(self.path / f"{name}.{each}") for each in self.languages])


def _paths(given: str | Sequence[str]) -> list[Path]:
    return [Path(each) for each in ([given] if isinstance(given, str) else given)]


def _found(path: Path) -> Path:
    """Return a file, compressed or not.

    Raises:
        ValueError: There is neither.
    """
    compressed = path.with_name(path.name + COMPRESSED)
    for each in (path, compressed):
        if each.is_file():
            return each
    raise ValueError(
        f"There is neither {path} nor {compressed.name}. Give data.path=FOLDER. Where its "
        "files have other names, give data.source, data.target and data.test too."
    )
