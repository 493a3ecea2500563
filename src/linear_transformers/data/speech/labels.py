"""The labels of speech: phones, or the characters of a text."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from linear_transformers.data.base import Shape

# ARPAbet as CMUdict has it, without stress.
PHONES = (
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH",
    "IH", "IY", "JH", "K", "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH",
    "UW", "V", "W", "Y", "Z", "ZH",
)  # fmt: skip
KINDS = ("phones", "characters")


@dataclass(frozen=True)
class SpeechShape(Shape):
    """The features and labels that a model is built for; saved with it.

    Attributes:
        num_mels: The number of mel bands.
        sample_rate: The rate of recordings, in Hz.
        kind: The kind of labels: `phones` or `characters`.
        labels: The units of labels 1, 2, ...; 0 is the blank.
    """

    num_mels: int
    sample_rate: int
    kind: str
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if min(self.num_mels, self.sample_rate, len(self.labels)) < 1 or self.kind not in KINDS:
            raise ValueError(
                f"num_mels={self.num_mels}, sample_rate={self.sample_rate}, {len(self.labels)} "
                f"labels of kind {self.kind}: sizes are at least 1, and the kind is one of {KINDS}."
            )

    @property
    def description(self) -> str:
        return f"{len(self.labels)} {self.kind}, {self.num_mels} mel bands at {self.sample_rate} Hz"

    @property
    def unit(self) -> str:
        """The kind in the singular: `phone` or `character`."""
        return self.kind.removesuffix("s")

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, as lists of them have them: a space would not be seen."""
        return tuple("<space>" if label == " " else label for label in self.labels)

    def encode(self, units: Sequence[str]) -> list[int]:
        """Return the labels of phones or characters.

        Raises:
            ValueError: A unit is not in the label set.
        """
        numbers = {unit: i for i, unit in enumerate(self.labels, start=1)}
        units = in_case_of(units, self.labels)
        unknown = sorted({unit for unit in units if unit not in numbers})
        if unknown:
            raise ValueError(
                f"{', '.join(map(repr, unknown[:5]))} is not among the {len(self.labels)} "
                f"{self.kind} of this model."
            )
        return [numbers[unit] for unit in units]

    def decode(self, labels: Sequence[int]) -> str:
        """Return labels as readable text."""
        return (" " if self.kind == "phones" else "").join(self.labels[i - 1] for i in labels)


def units_of(transcript: str | Sequence[str], kind: str) -> tuple[str, ...]:
    """Return a transcript as normalised phones or characters.

    Phones lose their stress; what their case says is for `labels_of` to decide. Texts are composed
    (Unicode's NFC: an e and an accent are one letter), in capitals, and of letters, digits,
    apostrophes and single spaces.
    """
    if kind == "phones":
        parts = transcript.split() if isinstance(transcript, str) else transcript
        return tuple(re.sub(r"\d$", "", unicodedata.normalize("NFC", p)) for p in parts)
    text = transcript if isinstance(transcript, str) else " ".join(transcript)
    text = (
        unicodedata.normalize("NFC", text).upper().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    )
    kept = "".join(c if c == "'" or unicodedata.category(c)[0] in "LMN" else " " for c in text)
    return tuple(" ".join(kept.split()))


def labels_of(transcripts: Iterable[Sequence[str]], kind: str) -> tuple[str, ...]:
    """Return the label set of a corpus: CMUdict's phones if they suffice, in whatever case they are
    written, else all that occur, in theirs: in SAMPA, `s` and `S` are two phones."""
    found = {unit for units in transcripts for unit in units}
    if kind == "phones" and {unit.upper() for unit in found} <= set(PHONES):
        return PHONES
    return tuple(sorted(found))


def in_case_of(units: Sequence[str], labels: Collection[str]) -> Sequence[str]:
    """Return units in capitals, where all labels are."""
    return units if any(label != label.upper() for label in labels) else [x.upper() for x in units]
