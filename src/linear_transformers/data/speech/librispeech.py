"""LibriSpeech (Panayotov et al., 2015): read English books, with texts but no phones."""

from pathlib import Path
from typing import Any

from torchaudio.datasets import LIBRISPEECH

from linear_transformers.data.speech.base import SpeechDataModule
from linear_transformers.data.speech.labels import units_of
from linear_transformers.data.speech.lexicon import Lexicon
from linear_transformers.data.speech.manifest import Utterance


class LibriSpeech(SpeechDataModule):
    """Through torchaudio's class of the data set, which can download it.

    Phones are those of a lexicon; utterances with a word that it lacks are left out of training
    and of every figure. `data.labels=characters` needs no lexicon and leaves out nothing.

    Args:
        root: Where `LibriSpeech/` lies, and features are kept.
        train: The parts to train on: `train-clean-100`, ...
        val: To validate on.
        test: To test on.
        lexicon: A file like CMUdict's `cmudict.dict`.
        download: Whether to download parts that are absent: 6 GB and more.
        options: See `SpeechDataModule`.

    Raises:
        ValueError: Phones are wanted and there is no lexicon; see `SpeechDataModule`.
    """

    def __init__(
        self,
        root: str,
        *,
        train: str = "train-clean-100",
        val: str = "dev-clean",
        test: str = "test-clean",
        lexicon: str | None = None,
        download: bool = False,
        **options: Any,
    ):
        super().__init__(root, **options)
        if self.kind == "phones" and lexicon is None:
            raise ValueError(
                "LibriSpeech has texts and no phones. Give data.lexicon=FILE, such as CMUdict's "
                "cmudict.dict, or use data.labels=characters."
            )
        self.parts = {"train": train, "val": val, "test": test}
        self.lexicon = Lexicon(Path(lexicon)) if lexicon else None
        self.download = download

    def read(self, split: str) -> list[Utterance]:
        part = self.parts[split]
        try:
            corpus = LIBRISPEECH(str(self.root), url=part, download=self.download)
        except (RuntimeError, ValueError, OSError) as error:
            raise ValueError(
                f"LibriSpeech's {part} is not in {self.root / 'LibriSpeech'} "
                f"({' '.join(str(error).split())}). Put it there, or use data.download=true."
            ) from error
        found = []
        for i in range(len(corpus)):
            path, _, text, speaker, _, _ = corpus.get_metadata(i)
            units = self._units(text)
            if units is not None:
                audio = self.root / "LibriSpeech" / path
                found.append(Utterance(audio, units, speaker=str(speaker), text=text, place=path))
        return found

    def _units(self, text: str) -> tuple[str, ...] | None:
        if self.kind == "characters":
            return units_of(text, self.kind)
        assert self.lexicon is not None
        try:
            return self.lexicon(text)
        except ValueError:  # a word that is not listed
            return None
