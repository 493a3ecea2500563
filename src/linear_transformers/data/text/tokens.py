"""Texts as tokens: small integers, of which the first few are not of any text."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

START, END, UNKNOWN = 0, 1, 2
SPECIAL = 3  # the first token of a text
UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(ABC):
    """A map from texts to tokens and back, which is plain data: a name and a vocabulary.

    Attributes:
        num_tokens: The number of different tokens, the special ones included.
    """

    num_tokens: int

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without start and end."""

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens. Special ones are left out, but for the unknown one."""


class Bytes(Tokenizer):
    """The bytes of UTF-8: every text has them.

    Args:
        vocabulary: Empty.
    """

    def __init__(self, vocabulary: str = ""):
        self.num_tokens = SPECIAL + 256

    @staticmethod
    def learn(texts: Iterable[str]) -> str:
        """Return the vocabulary of texts."""
        return ""

    def encode(self, text: str) -> list[int]:
        return [byte + SPECIAL for byte in text.encode()]

    def decode(self, tokens: Iterable[int]) -> str:
        found = bytes(token - SPECIAL for token in tokens if token >= SPECIAL)
        return found.decode(errors="replace")


class Characters(Tokenizer):
    """The characters of the training texts. Others are unknown.

    Args:
        vocabulary: The characters, in the order of their tokens.
    """

    def __init__(self, vocabulary: str):
        self.characters = vocabulary
        self.num_tokens = SPECIAL + len(vocabulary)
        self._tokens = {character: i + SPECIAL for i, character in enumerate(vocabulary)}

    @staticmethod
    def learn(texts: Iterable[str]) -> str:
        """Return the vocabulary of texts."""
        return "".join(sorted(set().union(*texts)))

    def encode(self, text: str) -> list[int]:
        return [self._tokens.get(character, UNKNOWN) for character in text]

    def decode(self, tokens: Iterable[int]) -> str:
        characters = (
            UNREADABLE if token == UNKNOWN else self.characters[token - SPECIAL]
            for token in tokens
            if token >= UNKNOWN
        )
        return "".join(characters)


TOKENIZERS = {"bytes": Bytes, "characters": Characters}
