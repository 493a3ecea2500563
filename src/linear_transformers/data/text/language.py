"""The base of texts to model, token by token."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from torch.utils.data import DataLoader

from linear_transformers.config.messages import are, counted
from linear_transformers.config.ranges import Count, Seed, Size, check_choice, ranged
from linear_transformers.data.base import DataSource, Split
from linear_transformers.data.batches import loader_of
from linear_transformers.data.sequences import SequenceShape
from linear_transformers.data.text.documents import Document, Documents, documents_of
from linear_transformers.data.text.segments import (
    DocumentBatches,
    Reading,
    SegmentBatches,
    SegmentsOf,
)
from linear_transformers.data.text.tokens import (
    TOKENIZERS,
    UNKNOWN,
    Tokenizer,
    VocabularySize,
    tokenizer_of,
)


@dataclass(frozen=True)
class TextShape(SequenceShape):
    """How texts become tokens, and how many of them are read together in training.

    Attributes:
        segment: The number of tokens of a segment.
        tokens: The kind of tokens: a key of `TOKENIZERS`.
        vocabulary: What else is needed to make the tokenizer.
    """

    segment: int
    tokens: str
    vocabulary: str

    bounded = False

    def __post_init__(self) -> None:
        check_choice("data.tokens", self.tokens, TOKENIZERS)
        if self.segment < 1:
            raise ValueError(f"segment={self.segment}: a segment has at least one token.")

    @property
    def length(self) -> int:
        return self.segment

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return tokenizer_of(self.tokens, self.vocabulary)

    @property
    def num_values(self) -> int:
        return self.tokenizer.num_tokens

    @property
    def description(self) -> str:
        tokenizer = self.tokenizer
        return f"texts in segments of {self.segment} {tokenizer.noun}, {tokenizer.num_tokens} kinds"


class TextSource(DataSource):
    """Texts to model, of any length.

    Args:
        batch_size: The number of segments in a batch, on each device.
        segment: The number of tokens of a segment.
        tokens: The kind of tokens: `bytes`, `characters` or `bpe` (subwords), the latter two of
            what is trained on.
        vocabulary_size: The number of different tokens of `bpe`.
        carry_state: Whether a segment is read with the state that the one before it left, in
            training without its gradients, and documents are evaluated as wholes.
        root: The folder whose subfolder `tokens` caches the tokens of large texts.
        seed: See `DataSource`.

    Raises:
        ValueError: The kind of tokens is unknown.
    """

    noun: ClassVar[str] = "segments"

    @ranged
    def __init__(
        self,
        batch_size: Count,
        *,
        segment: Size = 256,
        tokens: str = "bytes",
        vocabulary_size: VocabularySize = 8000,
        carry_state: bool = False,
        root: str = "data",
        seed: Seed = 0,
    ):
        super().__init__(seed)
        check_choice("data.tokens", tokens, TOKENIZERS)
        self.batch_size = batch_size
        self.segment = segment
        self.kind = tokens
        self.vocabulary_size = vocabulary_size
        self.carry_state = carry_state
        self.cache = Path(root) / "tokens"
        self._documents: dict[Split, Documents] = {}
        self._shape: TextShape | None = None

    @abstractmethod
    def find(self) -> dict[Split, list[Document]]:
        """Find the documents of each split.

        Raises:
            ValueError: They are missing or empty.
        """

    def notes(self) -> list[str]:
        if self.kind != "characters":
            return super().notes()  # all texts have tokens
        counts = {x: int((self.documents(x).tokens == UNKNOWN).sum()) for x in ("val", "test")}
        unknown = [
            f"{counted(count, 'character')} of {split} {are(count)} in no training text: bits per "
            "byte take each for three bytes, and do not say which it is. data.tokens=bytes does"
            for split, count in counts.items()
            if count
        ]
        return [*super().notes(), *unknown]

    def texts(self, split: Split) -> list[Document]:
        """Return the documents of a split, found at the first use."""
        return self._texts[split]

    @cached_property
    def _texts(self) -> dict[Split, list[Document]]:
        return self.find()

    @property
    def shape(self) -> TextShape:
        if self._shape is None:
            texts = (part for text in self.texts("train") for part in text.texts())
            vocabulary = TOKENIZERS[self.kind].learn(texts, self.vocabulary_size)
            self._shape = TextShape(self.segment, self.kind, vocabulary)
        return self._shape

    def documents(self, split: Split) -> Documents:
        """Return the tokens of the documents of a split, made at the first use."""
        if split not in self._documents:
            shape = self.shape
            about = f"{shape.tokens} {shape.vocabulary}"
            found = documents_of(self.texts(split), shape.tokenizer, about, self.cache)
            self._documents[split] = found
        return self._documents[split]

    def check(self, world_size: int) -> None:
        for split in ("val", "test"):
            self.documents(split)
        if not len(SegmentBatches(self._reading("train", 0, world_size), self.seed)):
            count = self.documents("train").ends[-1]
            raise ValueError(
                f"{count} training {self.shape.tokenizer.noun} do not fill one batch of "
                f"{self.batch_size} segments of {self.segment} on each of "
                f"{counted(world_size, 'device')}. "
                "Use a smaller data.batch_size or data.segment."
            )

    def loader(self, split: Split, *, rank: int = 0, world_size: int = 1) -> DataLoader:
        reading, training = self._reading(split, rank, world_size), split == "train"
        batches = SegmentBatches(reading, self.seed) if training else DocumentBatches(reading)
        return loader_of(SegmentsOf(reading), batches)

    def _reading(self, split: Split, rank: int, world_size: int) -> Reading:
        sizes = self.documents(split), self.segment, self.batch_size
        return Reading(*sizes, self.carry_state, rank, world_size)
