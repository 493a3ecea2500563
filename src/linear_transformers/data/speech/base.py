"""What corpora of speech share: features in a cache, and batches of like length over them."""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from linear_transformers.ctc import frames_needed
from linear_transformers.data.base import SPLITS, DataSource, Split
from linear_transformers.data.batches import BucketBatches, SortedBatches
from linear_transformers.data.speech.cache import FeatureCache, features_of
from linear_transformers.data.speech.features import SHIFT_MS
from linear_transformers.data.speech.labels import KINDS, SpeechShape, labels_of, units_of
from linear_transformers.data.speech.lexicon import Lexicon
from linear_transformers.data.speech.manifest import Utterance
from linear_transformers.shapes import SpeechBatch

# More utterances than this share that cannot be spelt in their frames are a fault of the data.
MOST_UNSPELT = 0.01


class AudioOptions(NamedTuple):
    """How recordings are read; see `SpeechSource`."""

    sample_rate: int = 16000
    num_mels: int = 40
    convert: bool = True


class SpeechSource(DataSource):
    """Utterances with their phones or characters, as log-mel features.

    Args:
        root: Where features are kept, in a folder `features`.
        batch_frames: Frames of a batch, padding included, on each device.
        labels: `phones` or `characters`.
        sample_rate: Hz; recordings at another are converted.
        num_mels: Bands.
        speeds: Of training utterances; an epoch takes each at one of them, by chance.
        max_seconds: Longer utterances are not trained on.
        convert: Whether other rates are resampled and channels averaged, or refused.
        seed: See `DataSource`.

    Raises:
        ValueError: An unknown choice, or a number that is too small.
    """

    noun: ClassVar[str] = "utterances"

    def __init__(
        self,
        root: str,
        *,
        batch_frames: int = 8000,
        labels: str = "phones",
        sample_rate: int = 16000,
        num_mels: int = 40,
        speeds: Sequence[float] = (1.0,),
        max_seconds: float = 24.0,
        convert: bool = True,
        seed: int = 0,
    ):
        super().__init__(seed)
        if labels not in KINDS:
            raise ValueError(f"data.labels={labels} is unknown. Choose one of {list(KINDS)}.")
        for name, number in (
            ("batch_frames", batch_frames), ("sample_rate", sample_rate), ("num_mels", num_mels),
            ("max_seconds", max_seconds), ("speeds", min(speeds, default=0)),
        ):  # fmt: skip
            if number <= 0:
                raise ValueError(f"data.{name}: {number} was asked for; it must be above 0.")
        self.root = Path(root)
        self.batch_frames = batch_frames
        self.kind = labels
        self.options = AudioOptions(sample_rate, num_mels, convert)
        self.speeds = tuple(speeds)
        self.max_seconds = max_seconds
        self.notes: list[str] = []  # what was left out as the corpus was read
        self._utterances: dict[str, list[Utterance]] = {}
        self._features: dict[str, FeatureCache] = {}
        self._shape: SpeechShape | None = None
        self._trained: np.ndarray | None = None

    @abstractmethod
    def read(self, split: str) -> list[Utterance]:
        """The utterances of `train`, `val` or `test`.

        Raises:
            ValueError: The corpus cannot be read.
        """

    def utterances(self, split: str) -> list[Utterance]:
        """The same, read once."""
        if split not in self._utterances:
            self._utterances[split] = self.read(split)
            if not self._utterances[split]:
                why = "".join(f" {note}." for note in self.notes)
                raise ValueError(f"There are no utterances to {split} on.{why}")
        return self._utterances[split]

    def labels(self, split: str) -> list[list[int]]:
        """The labels of each utterance.

        Raises:
            ValueError: One is not among those of training; it names the utterance.
        """
        found = []
        for utterance in self.utterances(split):
            try:
                found.append(self.shape.encode(utterance.units))
            except ValueError as error:
                raise ValueError(f"{utterance.place or utterance.audio}: {error}") from error
        return found

    @property
    def shape(self) -> SpeechShape:
        if self._shape is None:
            units = (utterance.units for utterance in self.utterances("train"))
            self._shape = SpeechShape(
                self.options.num_mels, self.options.sample_rate, self.kind,
                labels_of(units, self.kind),
            )  # fmt: skip
        return self._shape

    def features(self, split: str) -> FeatureCache:
        """The features of a split; computed at the first use ever, which takes a while."""
        if split not in self._features:
            self._features[split] = features_of(
                self.utterances(split),
                self.shape,
                speeds=self.speeds if split == "train" else (1.0,),
                root=self.root / "features",
                name=split,
                convert=self.options.convert,
            )
        return self._features[split]

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each band in training."""
        return self.features("train").statistics()

    @property
    def trained(self) -> np.ndarray:
        """Which utterances are trained on: all, before `leave_out` was asked."""
        return np.arange(len(self.features("train"))) if self._trained is None else self._trained

    @property
    def longest(self) -> int:
        """Frames of the longest of them, at its slowest."""
        return int(self.features("train").lengths[self.trained].max())

    def check(self, world_size: int) -> None:
        for split in SPLITS:
            self.labels(split)
            count = len(self.features(split))
            if count < world_size:
                raise ValueError(
                    f"{count} {self.noun} to {split} on are fewer than {world_size} devices."
                )

    def leave_out(self, num_outputs: Callable[[int], int]) -> list[str]:
        """Leave out of training what is too long, and what CTC cannot spell: fewer outputs than
        labels and repeats. Of the latter, those to validate and test on count as errors, but
        have no loss.

        Args:
            num_outputs: Of a model, for so many frames.

        Returns:
            A line for each kind of which there are any.

        Raises:
            ValueError: More than 1 % of a split cannot be spelt, or nothing is left.
        """
        lines, kept = [*self.notes], {}
        for split in SPLITS:
            spelt = self._spelt(split, num_outputs)
            kept[split] = spelt
            if not spelt.all():
                fate = "left out" if split == "train" else "without a loss"
                lines.append(f"{self._unspelt(split, spelt)}: {fate}")
        most = self.max_seconds * 1000 / SHIFT_MS
        short = self.features("train").lengths.max(axis=1) * min(self.speeds) <= most
        if not short.all():
            lines.append(
                f"{(~short).sum()} of {len(short)} train {self.noun} are longer than "
                f"{self.max_seconds:g} s: left out"
            )
        self._trained = np.flatnonzero(kept["train"] & short)
        if not len(self._trained):
            raise ValueError(f"No {self.noun} are left to train on: {'; '.join(lines)}.")
        return lines

    def _spelt(self, split: str, num_outputs: Callable[[int], int]) -> np.ndarray:
        """Which utterances have outputs enough for their labels, at every speed."""
        shortest = self.features(split).lengths.min(axis=1)
        return np.array(
            [
                num_outputs(int(length)) >= frames_needed(labels)
                for length, labels in zip(shortest, self.labels(split), strict=True)
            ]
        )

    def _unspelt(self, split: str, spelt: np.ndarray) -> str:
        count, first = int((~spelt).sum()), int(np.flatnonzero(~spelt)[0])
        message = (
            f"{count} of {len(spelt)} {split} {self.noun} have fewer frames than labels after "
            f"subsampling, {self.utterances(split)[first].audio} for one"
        )
        if count > max(1, MOST_UNSPELT * len(spelt)):
            raise ValueError(f"{message}. Use a smaller task.encoder.subsampling.")
        return message

    def loader(self, split: Split, *, rank: int = 0, world_size: int = 1) -> DataLoader:
        place = {"rank": rank, "world_size": world_size}
        if split != "train":
            lengths = self.features(split).lengths[:, 0]
            batches = SortedBatches(lengths, self.batch_frames, **place)
            return self._over(split, batches, np.arange(len(lengths)))
        lengths = self.features("train").lengths[self.trained].max(axis=1)
        batches = BucketBatches(
            lengths, self.batch_frames, self.seed, **place, variants=len(self.speeds)
        )
        if not len(batches):
            raise ValueError(
                f"{len(lengths)} training {self.noun} make fewer batches than {world_size} "
                "devices. Use a smaller data.batch_frames."
            )
        return self._over("train", batches, self.trained)

    def _over(
        self, split: str, batches: BucketBatches | SortedBatches, kept: np.ndarray
    ) -> DataLoader:
        every = self.labels(split)
        labels = [every[i] for i in kept]
        # batch_size=None: the sampler's items are whole lists. No worker processes: the features
        # are mapped into memory.
        return DataLoader(
            Batches(self.features(split), kept, labels),
            batch_size=None,
            sampler=batches,
            pin_memory=torch.cuda.is_available(),
        )


class TextSpeech(SpeechSource):
    """A corpus that has texts and no phones.

    Args:
        root: See `SpeechSource`.
        lexicon: A file like CMUdict's `cmudict.dict`; needed for phones.
        options: See `SpeechSource`.

    Raises:
        ValueError: Phones are wanted and there is no lexicon; see `SpeechSource`.
    """

    def __init__(self, root: str, *, lexicon: str | None, **options: Any):
        super().__init__(root, **options)
        if self.kind == "phones" and lexicon is None:
            raise ValueError(
                "This corpus has texts and no phones. Give data.lexicon=FILE, such as CMUdict's "
                "cmudict.dict, or use data.labels=characters."
            )
        self.lexicon = Lexicon(Path(lexicon)) if lexicon else None

    @abstractmethod
    def transcribed(self, split: str) -> Iterator[tuple[Utterance, str]]:
        """Every utterance of a split, its units still to be found, and the words in it."""

    def read(self, split: str) -> list[Utterance]:
        every = [(utterance, self._units(words)) for utterance, words in self.transcribed(split)]
        found = [utterance._replace(units=units) for utterance, units in every if units]
        if len(found) < len(every):
            self.notes.append(
                f"{len(every) - len(found)} of {len(every)} {split} {self.noun} have a word that "
                "is not in the lexicon, or was not said to its end: left out"
            )
        return found

    def _units(self, words: str) -> tuple[str, ...]:
        """Of a text; none where they would have to be guessed."""
        if re.search(r"\w-(\s|$)", words):  # a word that was not said to its end
            return ()
        if self.kind == "characters":
            return units_of(words, self.kind)
        assert self.lexicon is not None
        try:
            return self.lexicon(words)
        except ValueError:  # a word that is not listed
            return ()


class Batches(Dataset[SpeechBatch]):
    """Utterances padded into batches.

    Args:
        features: Of a split, each utterance at each speed.
        kept: Which utterances of it there are.
        labels: Of these.
    """

    def __init__(self, features: FeatureCache, kept: np.ndarray, labels: Sequence[list[int]]):
        self.features = features
        self.kept = kept
        self.labels = labels

    def __getitem__(self, items: list[int]) -> SpeechBatch:
        """The batch of `items`, each an utterance's number times the speeds, plus the speed's."""
        speeds = self.features.lengths.shape[1]
        parts = [self.features.get(int(self.kept[i // speeds]), i % speeds) for i in items]
        labels = [self.labels[i // speeds] for i in items]
        lengths, sizes = [len(part) for part in parts], [len(part) for part in labels]
        padded = torch.zeros(len(items), max(lengths), self.features.frames.shape[1])
        targets = torch.zeros(len(items), max(sizes), dtype=torch.long)
        for i, (part, row) in enumerate(zip(parts, labels, strict=True)):
            padded[i, : len(part)] = torch.from_numpy(part.astype(np.float32))
            targets[i, : len(row)] = torch.tensor(row)
        return SpeechBatch(padded, torch.tensor(lengths), targets, torch.tensor(sizes))
