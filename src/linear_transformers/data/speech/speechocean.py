"""speechocean762 (Zhang et al., 2021), read English of Mandarin speakers, as it is published."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from linear_transformers.config.ranges import Part, ranged
from linear_transformers.data.speech.base import SpeechSource
from linear_transformers.data.speech.labels import units_of
from linear_transformers.data.speech.manifest import Utterance
from linear_transformers.data.speech.manifests import divided

PHONES_OF_WORDS = "resource/text-phone"


class SpeechOcean(SpeechSource):
    """The corpus as OpenSLR 101 has it: Kaldi's files in `train` and `test`, recordings in `WAVE`.

    Phones are those of the text, as `resource/text-phone` has them, not those that were said.

    Args:
        root: The folder of cached features.
        path: The folder of `train`, `test`, `resource` and `WAVE`.
        val_share: The share of the training speakers to hold out for validation.
        options: See `SpeechSource`.

    Raises:
        ValueError: See `SpeechSource`.
    """

    @ranged
    def __init__(
        self,
        root: str,
        *,
        path: str,
        val_share: Part = 0.1,
        **options: Any,
    ):
        super().__init__(root, **options)
        self.path = Path(path)
        self.val_share = val_share

    def read(self, split: str) -> list[Utterance]:
        found = self._listed("test" if split == "test" else "train")
        if split == "test":
            return found
        return divided(found, self.val_share, validation=split == "val")

    def _listed(self, part: str) -> list[Utterance]:
        """Return the utterances that a part's wav.scp lists.

        Raises:
            ValueError: A file is missing or damaged, or does not know an utterance.
        """
        audio, speakers, texts = (
            read_table(self.path / part / name) for name in ("wav.scp", "utt2spk", "text")
        )
        units = {name: units_of(entry.value, self.kind) for name, entry in texts.items()}
        if self.kind == "phones":
            units = phones_of(self.path / PHONES_OF_WORDS)
        found = []
        for name, entry in audio.items():
            if entry.value.endswith("|"):
                raise ValueError(
                    f"{entry.place}: {entry.value!r} is a command to run; give the path of a file."
                )
            for where, known in (
                ("utt2spk", speakers), ("text", texts), (PHONES_OF_WORDS, units),
            ):  # fmt: skip
                if not known.get(name):
                    raise ValueError(f"{entry.place}: {where} has nothing on {name}.")
            found.append(
                Utterance(
                    self.path / entry.value, units[name], speaker=speakers[name].value,
                    text=texts[name].value, place=entry.place,
                )
            )  # fmt: skip
        return found


class Entry(NamedTuple):
    """What a line of a table says, and the file and line, for messages."""

    value: str
    place: str


def read_table(path: Path) -> dict[str, Entry]:
    """Return a file of Kaldi's: on each line a key, a space or tab, and its value.

    Raises:
        ValueError: The file is missing or not UTF-8, a line has no value, or a key two.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} does not exist. Give data.path=FOLDER, that of speechocean762: its train, "
            "test, resource and WAVE."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}).") from error
    found: dict[str, Entry] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        key, *value = line.split(maxsplit=1)
        place = f"{path}:{number}"
        if not value:
            raise ValueError(f"{place}: {key} has no value.")
        if key in found:
            raise ValueError(f"{place}: {key} is in {found[key].place}, too.")
        found[key] = Entry(value[0].strip(), place)
    return found


def phones_of(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the phones of each utterance, from those of its words.

    Args:
        path: The table of words, `UTTERANCE.WORD` each, counted from 0; phones are ARPAbet with
            stress and place in the word: `W_B IY0_E`.

    Raises:
        ValueError: A key is no word of an utterance; or see `read_table`.
    """
    words: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for key, (value, place) in read_table(path).items():
        utterance, _, number = key.rpartition(".")
        if not (utterance and number.isdecimal()):
            raise ValueError(f"{place}: {key} is not UTTERANCE.WORD, such as 000010011.0.")
        phones = units_of(re.sub(r"_[BIES]\b", "", value), "phones")
        words.setdefault(utterance, []).append((int(number), phones))
    return {
        utterance: tuple(phone for _, phones in sorted(found) for phone in phones)
        for utterance, found in words.items()
    }
