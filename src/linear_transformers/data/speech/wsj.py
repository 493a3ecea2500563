"""The Wall Street Journal corpus (LDC93S6A, LDC94S13A) as it comes from the LDC."""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from linear_transformers.data.base import files_below
from linear_transformers.data.speech.base import TextSpeech
from linear_transformers.data.speech.manifest import Utterance

# The indices of the utterances of each split: si284 is si84 and si200.
INDICES = {
    "train": (
        "wsj0/doc/indices/train/tr_s_wv1.ndx",
        "wsj1/doc/indices/si_tr_s.ndx",
    ),
    "val": ("wsj1/doc/indices/h1_p0.ndx",),  # dev93
    "test": ("wsj0/doc/indices/test/nvp/si_et_20.ndx",),  # eval92
}
MISSING = "wsj0/si_tr_s/401/"  # listed for disc 11-2.1, and not on it


class WallStreetJournal(TextSpeech):
    """Wall Street Journal: si284 for training (80 hours), dev93 for validation, eval92 for test.

    Transcripts are the detailed ones (.dot); phones are those of a lexicon. Utterances with a
    word that it lacks, or that was cut off, are left out.

    Args:
        root: The folder of cached features.
        path: The folder of the discs, `11-1.1/wsj0/...`, `13-34.1/wsj1/...`, or all in one:
            `wsj0/...`, `wsj1/...`. The recordings (.wv1) are compressed by `shorten`, which
            needs the LDC's `sph2pipe` on the PATH.
        lexicon: See `TextSpeech`.
        options: See `SpeechSource`.

    Raises:
        ValueError: See `TextSpeech`.
    """

    def __init__(self, root: str, *, path: str, lexicon: str | None = None, **options: Any):
        super().__init__(root, lexicon=lexicon, **options)
        self.path = Path(path)

    def transcribed(self, split: str) -> Iterator[tuple[Utterance, str]]:
        for index in INDICES[split]:
            for audio in self._listed(index):
                text = self.texts.get(audio.stem.lower())
                if text is None:
                    raise ValueError(
                        f"{audio} has no transcript: no .dot file below {self.path} names "
                        f"{audio.stem}."
                    )
                speaker = audio.stem[:3].lower()
                utterance = Utterance(audio, (), speaker=speaker, text=text, place=index)
                yield utterance, spoken_words(text)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The detailed transcript of each utterance, by its id."""
        files = [p for p in files_below(self.path) if p.suffix.lower() == ".dot"]
        lines = (line for file in files for line in file.read_text("latin-1").splitlines())
        matches = (re.fullmatch(r"(.*)\((\w+)\)\s*", line) for line in lines)
        return {match[2].lower(): match[1].strip() for match in matches if match}

    def _listed(self, index: str) -> Iterator[Path]:
        """Yield the recordings that an index lists: `11_1_1:wsj0/si_tr_s/01i/01ic0201.wv1`."""
        candidates = [self.path / index, *sorted(self.path.glob(f"*/{index}"))]
        file = next((path for path in candidates if path.is_file()), None)
        if file is None:
            raise ValueError(
                f"{self.path} has no {index}, neither itself nor in a folder of a disc. Give "
                "data.path=FOLDER, the one that holds wsj0 and wsj1, or the discs."
            )
        for line in file.read_text("latin-1").splitlines():
            disc, _, name = line.partition(":")
            if line.startswith(";") or not name.strip() or MISSING in name.lower():
                continue
            name = name.strip().lstrip("/")
            name = name if name.lower().endswith(".wv1") else f"{name}.wv1"
            folder = re.sub(r"(\d+)_(\d+)_(\d+)", r"\1-\2.\3", disc.strip())
            on_disc = self.path / folder / name
            yield on_disc if on_disc.is_file() else self.path / name


def spoken_words(text: str) -> str:
    """Return the words of a detailed transcript.

    Noises, `[door_slam]`, and pauses, `.`, are removed. Words lose their marks: `*` (not as
    written), `:` (drawn out), `!` and a backquote (stressed), `~` (cut off), a backslash, and
    brackets (hardly audible). Punctuation that was read aloud, `,COMMA`, is its word. A word that
    was cut off keeps its hyphen.
    """
    words = []
    for word in re.sub(r"\[[^\]]*\]", " ", text).split():
        word = re.sub(r"[*:!`~\\()<>]", "", word)
        word = re.sub(r"^[^\w']+(?=\w)", "", word)
        if re.search(r"\w", word):
            words.append(word.rstrip('.,;?"'))
    return " ".join(words)
