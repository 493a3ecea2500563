"""Texts as tokens: small integers, of which the first few are not of any text."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

START, END, UNKNOWN = 0, 1, 2
SPECIAL = 3  # the first token of a text
UNREADABLE = "\N{REPLACEMENT CHARACTER}"
VocabularySize = Annotated[int, Ge(259), Le(2**20)]  # with all bytes, and the special tokens


class Tokenizer(ABC):
    """A map from texts to tokens and back, which is plain data: a name and a vocabulary.

    Attributes:
        noun: The name of the tokens, in the plural.
        num_tokens: The number of different tokens, the special ones included.
    """

    noun: ClassVar[str]
    num_tokens: int

    @staticmethod
    @abstractmethod
    def learn(texts: Iterable[str], size: int) -> str:
        """Return the vocabulary of texts, of so many tokens where there is a choice."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without start and end."""

    def encode_known(self, text: str, name: str) -> list[int]:
        """Return the tokens of a text, without start and end, of which none is unknown.

        Args:
            text: The text.
            name: What to call it.

        Raises:
            ValueError: It has a character that was in no training text, or half of one.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"Character {error.start + 1} of {name} is half of one. Give the text in UTF-8."
            ) from error
        tokens = self.encode(text)
        if UNKNOWN in tokens:
            place = tokens.index(UNKNOWN)  # of characters, which alone can be unknown
            raise ValueError(
                f"Character {place + 1} of {name}, {text[place]!r}, was in no text that this model "
                "was trained on. Leave it out, or train with data.tokens=bytes."
            )
        return tokens

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each of some texts."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens. Special ones are left out, but for the unknown one."""

    @property
    @abstractmethod
    def pieces(self) -> list[bytes]:
        """The bytes of each token, which joined are the text. Special tokens have none, but for
        the unknown one."""


class Bytes(Tokenizer):
    """The bytes of UTF-8: every text has them.

    Args:
        vocabulary: Empty.
    """

    noun = "bytes"

    def __init__(self, vocabulary: str = ""):
        self.num_tokens = SPECIAL + 256

    @staticmethod
    def learn(texts: Iterable[str], size: int) -> str:
        return ""

    def encode(self, text: str) -> list[int]:
        return [byte + SPECIAL for byte in text.encode()]

    def decode(self, tokens: Iterable[int]) -> str:
        found = bytes(token - SPECIAL for token in tokens if token >= SPECIAL)
        return found.decode(errors="replace")

    @property
    def pieces(self) -> list[bytes]:
        return [b""] * SPECIAL + [bytes([byte]) for byte in range(256)]


class Characters(Tokenizer):
    """The characters of the training texts. Others are unknown.

    Args:
        vocabulary: The characters, in the order of their tokens.
    """

    noun = "characters"

    def __init__(self, vocabulary: str):
        self.characters = vocabulary
        self.num_tokens = SPECIAL + len(vocabulary)
        self._tokens = {character: i + SPECIAL for i, character in enumerate(vocabulary)}

    @staticmethod
    def learn(texts: Iterable[str], size: int) -> str:
        found: set[str] = set()
        for text in texts:  # one at a time: they may exceed memory
            found.update(text)
        return "".join(sorted(found))

    def encode(self, text: str) -> list[int]:
        return [self._tokens.get(character, UNKNOWN) for character in text]

    def decode(self, tokens: Iterable[int]) -> str:
        characters = (
            UNREADABLE if token == UNKNOWN else self.characters[token - SPECIAL]
            for token in tokens
            if token >= UNKNOWN
        )
        return "".join(characters)

    @property
    def pieces(self) -> list[bytes]:
        return [b"", b"", UNREADABLE.encode(), *(each.encode() for each in self.characters)]


class BytePairs(Tokenizer):
    """The most frequent subwords in the training texts (Sennrich et al., 2016), down to
    single bytes: every text has them.

    Args:
        vocabulary: The JSON of a tokenizer of the `tokenizers` library.
    """

    noun = "subwords"

    def __init__(self, vocabulary: str):
        from tokenizers import Tokenizer as Pieces  # late: other texts do without it

        self._pieces = Pieces.from_str(vocabulary)
        self.num_tokens = SPECIAL + self._pieces.get_vocab_size()

    @staticmethod
    def learn(texts: Iterable[str], size: int) -> str:
        from tokenizers import Tokenizer as Pieces
        from tokenizers import decoders, models, pre_tokenizers, trainers

        pieces = Pieces(models.BPE())
        pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        pieces.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=max(256, size - SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        pieces.train_from_iterator(texts, trainer)
        return pieces.to_str()

    def encode(self, text: str) -> list[int]:
        return [token + SPECIAL for token in self._pieces.encode(text).ids]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [
            [token + SPECIAL for token in each.ids] for each in self._pieces.encode_batch(texts)
        ]

    def decode(self, tokens: Iterable[int]) -> str:
        return self._pieces.decode([token - SPECIAL for token in tokens if token >= SPECIAL])

    @property
    def pieces(self) -> list[bytes]:
        byte_of = _bytes_of_alphabet()
        words = (self._pieces.id_to_token(i) or "" for i in range(self.num_tokens - SPECIAL))
        return [b""] * SPECIAL + [bytes(byte_of[character] for character in x) for x in words]


def _bytes_of_alphabet() -> dict[str, int]:
    """Return the byte that each character of a vocabulary of byte pairs stands for: itself where
    it is printed in Latin-1, else one of the characters from 256 on, in order (GPT-2's)."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


TOKENIZERS = {"bpe": BytePairs, "bytes": Bytes, "characters": Characters}


@cache
def tokenizer_of(kind: str, vocabulary: str) -> Tokenizer:
    """Return the tokenizer of a kind with a vocabulary that it has learned."""
    return TOKENIZERS[kind](vocabulary)
