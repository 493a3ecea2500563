"""LibriSpeech (Panayotov et al., 2015): read English books, with texts but no phones."""

from collections.abc import Iterator
from typing import Any

from torchaudio.datasets import LIBRISPEECH

from linear_transformers.data.speech.base import TextSpeech
from linear_transformers.data.speech.manifest import Utterance


class LibriSpeech(TextSpeech):
    """LibriSpeech as torchaudio reads it, and downloads it if asked.

    Phones are those of a lexicon; utterances with a word that it lacks are left out of every
    split. `data.labels=characters` needs no lexicon and leaves out nothing.

    Args:
        root: The folder of `LibriSpeech/` and of cached features.
        train: The part to train on: `train-clean-100`, ...
        val: The part to validate on.
        test: The part to test on.
        lexicon: See `TextSpeech`.
        download: Whether to download missing parts, of 6 GB and more.
        options: See `SpeechSource`.

    Raises:
        ValueError: See `TextSpeech`.
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
        super().__init__(root, lexicon=lexicon, **options)
        self.parts = {"train": train, "val": val, "test": test}
        self.download = download

    def transcribed(self, split: str) -> Iterator[tuple[Utterance, str]]:
        part = self.parts[split]
        try:
            corpus = LIBRISPEECH(str(self.root), url=part, download=self.download)
            listed = [corpus.get_metadata(i) for i in range(len(corpus))]
        except (RuntimeError, ValueError, OSError) as error:
            raise ValueError(
                f"LibriSpeech's {part} is not in {self.root / 'LibriSpeech'}, or not whole "
                f"({' '.join(str(error).split())}). Put it there, or use data.download=true."
            ) from error
        for path, _, text, speaker, _, _ in listed:
            audio = self.root / "LibriSpeech" / path
            yield Utterance(audio, (), speaker=str(speaker), text=text, place=path), text
