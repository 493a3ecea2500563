"""Pronunciations of words, as CMUdict writes them down."""

import lzma
import re
from pathlib import Path
from unicodedata import normalize

from linear_transformers.data.speech.labels import units_of


class Lexicon:
    """A pronunciation dictionary in the format of CMUdict.

    Words have their first pronunciation. A word that is not listed is looked up without its
    possessive 's, then split at its hyphens. A text with an unknown word is refused, so that no
    utterance is trained on guessed phones.

    Args:
        path: The file, plain or compressed as .xz: `word PH0 NE1 S # comment`, variants as
            `word(2)`.

    Raises:
        ValueError: The file is missing, damaged, or lists nothing.
    """

    def __init__(self, path: Path):
        if not path.is_file():
            raise ValueError(f"The lexicon {path} does not exist. Give a file like cmudict.dict.")
        opened = lzma.open if path.suffix == ".xz" else open
        self.words: dict[str, tuple[str, ...]] = {}
        try:
            with opened(path, "rt", encoding="utf-8-sig") as file:
                lines = file.readlines()
        except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
            raise ValueError(f"The lexicon {path} cannot be read ({error}).") from error
        for line in lines:
            word, *phones = line.split("#")[0].split() or [";;;"]
            if not word.startswith(";;;") and not re.search(r"\(\d+\)$", word) and phones:
                word = normalize("NFC", word).upper()  # as `units_of` has texts
                self.words.setdefault(word, units_of(phones, "phones"))
        if not self.words:
            raise ValueError(f"The lexicon {path} lists no words: each line is WORD PH ON ES.")

    def __call__(self, text: str) -> tuple[str, ...]:
        """Return the phones of a text.

        Raises:
            ValueError: A word is unknown.
        """
        # Hyphens and spaces stay; `units_of` would make both spaces.
        words = re.sub(
            r"[^-\s]+", lambda part: "".join(units_of(part[0], "characters")), text
        ).split()
        return tuple(phone for word in words for phone in self._word(word))

    def _word(self, word: str) -> tuple[str, ...]:
        bare = word.strip("'-")
        for known in (word, bare):
            if known in self.words:
                return self.words[known]
        if bare.endswith("'S") and bare[:-2] in self.words:
            stem = self.words[bare[:-2]]
            return (*stem, *_possessive(stem[-1].upper()))
        if "-" in word:
            return tuple(phone for part in word.split("-") if part for phone in self._word(part))
        raise ValueError(f"the lexicon does not list {word!r}.")


def _possessive(last: str) -> tuple[str, ...]:
    """Return the phones of 's after a phone."""
    if last in ("S", "Z", "SH", "ZH", "CH", "JH"):
        return ("IH", "Z")
    return ("S",) if last in ("P", "T", "K", "F", "TH") else ("Z",)
