"""The base of data of pairs: a text, and the text that it is to become."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from linear_transformers.config.messages import are, counted
from linear_transformers.config.ranges import Count, Seed, Size, check_choice, ranged
from linear_transformers.data.base import SPLITS, DataSource, Shape, Split
from linear_transformers.data.batches import BucketBatches, SortedBatches, loader_of
from linear_transformers.data.text.tokens import (
    END,
    START,
    TOKENIZERS,
    UNKNOWN,
    Tokenizer,
    VocabularySize,
    tokenizer_of,
)
from linear_transformers.shapes import PairBatch

Item = tuple[list[int], list[int]]  # the tokens of a source, and of its target


class Pair(NamedTuple):
    """A text, and the text that it is to become."""

    source: str
    target: str


@dataclass(frozen=True)
class PairShape(Shape):
    """How texts become tokens, and how long they were in training.

    Attributes:
        tokens: The kind of tokens: a key of `TOKENIZERS`.
        vocabulary: What else is needed to make the tokenizer.
        longest: The number of tokens of the longest text that was trained on, source or target.
    """

    tokens: str
    vocabulary: str
    longest: int

    def __post_init__(self) -> None:
        check_choice("data.tokens", self.tokens, TOKENIZERS)
        if self.longest < 1:
            raise ValueError(f"longest={self.longest}: a text has at least one token.")

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return tokenizer_of(self.tokens, self.vocabulary)

    @property
    def num_tokens(self) -> int:
        return self.tokenizer.num_tokens

    @property
    def description(self) -> str:
        noun = self.tokenizer.noun
        return f"pairs of texts of up to {self.longest} {noun}, {self.num_tokens} different"


class PairSource(DataSource):
    """Pairs of texts, all in memory, in batches of similar length.

    Args:
        batch_tokens: The largest number of tokens of the sources or of the targets of a batch,
            padding included, on each device.
        tokens: The kind of tokens: `bpe` (subwords), `characters` or `bytes`.
        vocabulary_size: The number of different tokens of `bpe`.
        max_tokens: The number of tokens, of a source or a target, above which pairs are not
            trained on.
        seed: See `DataSource`.

    Raises:
        ValueError: The kind of tokens is unknown.
    """

    noun: ClassVar[str] = "pairs"
    natural: ClassVar[bool] = True  # of natural languages, of which a text has many translations

    @ranged
    def __init__(
        self,
        batch_tokens: Count = 4096,
        *,
        tokens: str = "characters",
        vocabulary_size: VocabularySize = 8000,
        max_tokens: Size = 512,
        seed: Seed = 0,
    ):
        super().__init__(seed)
        check_choice("data.tokens", tokens, TOKENIZERS)
        self.batch_tokens = batch_tokens
        self.kind = tokens
        self.vocabulary_size = vocabulary_size
        self.max_tokens = max_tokens
        self._pairs: dict[str, list[Pair]] = {}
        self._items: dict[str, list[Item]] = {}
        self._shape: PairShape | None = None

    @abstractmethod
    def read(self, split: Split) -> list[Pair]:
        """Read the pairs of a split.

        Raises:
            ValueError: They are missing or malformed.
        """

    def pairs(self, split: Split) -> list[Pair]:
        """Return the pairs of a split, read at the first use.

        Raises:
            ValueError: There are none; or see `read`.
        """
        if split not in self._pairs:
            self._pairs[split] = self.read(split)
        if not self._pairs[split]:
            raise ValueError(f"There are no {split} pairs. Give a data.{split} that has some.")
        return self._pairs[split]

    @property
    def shape(self) -> PairShape:
        if self._shape is None:
            pairs = self.pairs("train")
            texts = (text for pair in pairs for text in pair)
            vocabulary = TOKENIZERS[self.kind].learn(texts, self.vocabulary_size)
            items = _encoded(pairs, tokenizer_of(self.kind, vocabulary))
            kept = [item for item in items if max(map(len, item)) <= self.max_tokens]
            if not kept:
                raise ValueError(
                    f"Every training pair has more than data.max_tokens={self.max_tokens} tokens. "
                    "Raise data.max_tokens."
                )
            self._items["train"] = kept
            longest = max(max(map(len, item)) for item in kept)
            self._shape = PairShape(self.kind, vocabulary, longest)
        return self._shape

    def items(self, split: Split) -> list[Item]:
        """Return the tokens of sources and targets, of `train` of those that are not too long."""
        shape = self.shape  # with it come the items of `train`
        if split not in self._items:
            self._items[split] = _encoded(self.pairs(split), shape.tokenizer)
        return self._items[split]

    def notes(self) -> list[str]:
        """Return what a run has to say of its pairs, in lines: of those that are too long to train
        on, of others that are trained on, and of characters that no training text has."""
        tokenizer, lines = self.shape.tokenizer, []
        trained, kept = self.pairs("train"), self.items("train")
        if (long := len(trained) - len(kept)) > 0:
            lines.append(
                f"{long} of {len(trained)} train {self.noun} have more than {self.max_tokens} "
                f"{tokenizer.noun}: left out"
            )
        known = {*trained}
        others: tuple[Split, ...] = ("val", "test")
        for split in others:
            pairs = self.pairs(split)
            if count := sum(pair in known for pair in pairs):
                lines.append(f"{count} of {len(pairs)} {split} {self.noun} are trained on, too")
            if count := sum(x.count(UNKNOWN) for item in self.items(split) for x in item):
                lines.append(
                    f"{counted(count, 'character')} of {split} {are(count)} in no training text: "
                    "such are read as one, which no model learns. data.tokens=bytes has them all"
                )
        return lines

    def check(self, world_size: int) -> None:
        for split in SPLITS:
            count = len(self.items(split))
            if count < world_size:
                raise ValueError(
                    f"The {split} split has {count} {self.noun}, fewer than {world_size} devices."
                )
        self.loader("train", world_size=world_size)  # refuses too few batches

    def loader(self, split: Split, *, rank: int = 0, world_size: int = 1) -> DataLoader:
        items = self.items(split)
        lengths = np.array([max(len(source), len(target) + 1) for source, target in items])
        place = {"rank": rank, "world_size": world_size}
        if split == "train":
            batches = BucketBatches(lengths, self.batch_tokens, self.seed, **place)
            if not len(batches):
                raise ValueError(
                    f"{len(items)} training {self.noun} make fewer batches than {world_size} "
                    "devices. Use a smaller data.batch_tokens."
                )
        else:
            batches = SortedBatches(lengths, self.batch_tokens, **place)
        return loader_of(Batches(items), batches)


class Batches(Dataset[PairBatch]):
    """Pairs of tokens, padded into batches.

    Args:
        items: The tokens of each source and target.
    """

    def __init__(self, items: Sequence[Item]):
        self.items = items

    def __getitem__(self, indices: list[int]) -> PairBatch:
        sources, targets = zip(*(self.items[i] for i in indices), strict=True)
        return batch_of(sources, targets)


def _encoded(pairs: Sequence[Pair], tokenizer: Tokenizer) -> list[Item]:
    """Return the tokens of pairs."""
    sides = (tokenizer.encode_all([pair[side] for pair in pairs]) for side in (0, 1))
    return [*zip(*sides, strict=True)]


def batch_of(sources: Sequence[list[int]], targets: Sequence[list[int]]) -> PairBatch:
    """Return a batch of tokens, given those of sources and targets."""
    source, source_lengths = padded(sources)
    target, target_lengths = padded([[START, *row, END] for row in targets])
    return PairBatch(source, source_lengths, target, target_lengths)


def padded(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Return rows as one tensor, with end tokens after the shorter ones, and their lengths.

    An empty row has one end token: every source has at least one position.
    """
    tokens = [torch.tensor(row or [END]) for row in rows]
    lengths = torch.tensor([*map(len, tokens)])
    return pad_sequence(tokens, batch_first=True, padding_value=END), lengths
