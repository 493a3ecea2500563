"""The base of speech corpora: cached features, and batches of similar length."""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from linear_transformers.config.ranges import Count, Seconds, Seed, check_choice, ranged
from linear_transformers.ctc import frames_needed
from linear_transformers.data.base import SPLITS, DataSource, Split
from linear_transformers.data.batches import BucketBatches, SortedBatches, loader_of
from linear_transformers.data.speech.corpus import Features, cached_features
from linear_transformers.data.speech.features import SHIFT_MS
from linear_transformers.data.speech.labels import KINDS, PHONES, SpeechShape, labels_of, units_of
from linear_transformers.data.speech.lexicon import Lexicon
from linear_transformers.data.speech.manifest import Utterance
from linear_transformers.shapes import SpeechBatch

# A larger share of utterances with fewer outputs than CTC needs is an error.
MOST_UNSPELT = 0.01


class SpeechSource(DataSource):
    """Utterances with their phones or characters, as log-mel features.

    Args:
        root: The folder whose subfolder `features` caches features.
        batch_frames: The largest number of frames in a batch, padding included, on each device.
        labels: The kind of labels: `phones` or `characters`.
        sample_rate: The rate of recordings, in Hz.
        num_mels: The number of mel bands.
        speeds: The speeds of training utterances; an epoch takes each at a random one.
        max_seconds: The duration above which utterances are not trained on.
        convert: Whether to resample other rates and average channels; otherwise they are refused.
        seed: See `DataSource`.

    Raises:
        ValueError: The kind of labels is unknown, or a number is not above 0.
    """

    noun: ClassVar[str] = "utterances"

    @ranged
    def __init__(
        self,
        root: str,
        *,
        batch_frames: Count = 8000,
        labels: str = "phones",
        sample_rate: Annotated[int, Ge(1000), Le(768_000)] = 16000,
        num_mels: Annotated[int, Ge(4), Le(1024)] = 40,
        speeds: Sequence[Annotated[float, Ge(0.1), Le(10)]] = (1.0,),
        max_seconds: Seconds = 24.0,
        convert: bool = True,
        seed: Seed = 0,
    ):
        super().__init__(seed)
        check_choice("data.labels", labels, KINDS)
        if not speeds:
            raise ValueError("data.speeds is empty. Give one at least: 1.0 is as recorded.")
        self.root = Path(root)
        self.batch_frames = batch_frames
        self.kind = labels
        self.sample_rate = sample_rate
        self.num_mels = num_mels
        self.convert = convert
        self.speeds = tuple(speeds)
        self.max_seconds = max_seconds
        self._utterances: dict[str, list[Utterance]] = {}
        self._features: dict[str, Features] = {}
        self._shape: SpeechShape | None = None
        self._trained: np.ndarray | None = None

    @abstractmethod
    def read(self, split: str) -> list[Utterance]:
        """Read the utterances of `train`, `val` or `test`.

        Raises:
            ValueError: The corpus cannot be read.
        """

    def utterances(self, split: str) -> list[Utterance]:
        """Return the utterances of a split, read at the first use."""
        if split not in self._utterances:
            told = len(self._notes)  # of other splits
            self._utterances[split] = self.read(split)
            if not self._utterances[split]:
                why = "".join(f" {note}." for note in self._notes[told:])
                raise ValueError(f"The {split} split has no {self.noun}.{why}")
        return self._utterances[split]

    def labels(self, split: str) -> list[list[int]]:
        """Return the labels of each utterance.

        Raises:
            ValueError: An utterance has a label that training lacks.
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
            labels = labels_of(units, self.kind)
            self._shape = SpeechShape(self.num_mels, self.sample_rate, self.kind, labels)
        return self._shape

    def notes(self) -> list[str]:
        labels = self.shape.labels
        others = [label for label in labels if label.upper() not in PHONES]
        if self.kind != "phones" or not 0 < len(others) < len(labels) / 2:
            return super().notes()
        slips = (
            f"phones that CMUdict lacks: {', '.join(others)}; so the labels are the "
            f"{len(labels)} that occur, not its {len(PHONES)}"
        )
        return [*super().notes(), slips]

    def features(self, split: str) -> Features:
        """Return the features of a split, computed and cached at the first use ever."""
        if split not in self._features:
            self._features[split] = cached_features(
                self.utterances(split),
                self.shape,
                speeds=self.speeds if split == "train" else (1.0,),
                root=self.root / "features",
                name=split,
                convert=self.convert,
            )
        return self._features[split]

    @property
    def trained(self) -> np.ndarray:
        """The indices of the utterances to train on: all, before `leave_out` was called."""
        return np.arange(len(self.features("train"))) if self._trained is None else self._trained

    @property
    def longest(self) -> int:
        """The number of frames of the longest of them, at its slowest."""
        return int(self.features("train").lengths[self.trained].max())

    def check(self, world_size: int) -> None:
        for split in SPLITS:
            self.labels(split)
            count = len(self.features(split))
            if count < world_size:
                raise ValueError(
                    f"The {split} split has {count} {self.noun}, fewer than {world_size} devices."
                )
        self.loader("train", world_size=world_size)  # refuses too few batches

    def leave_out(self, num_outputs: Callable[[int], int]) -> list[str]:
        """Leave out training utterances that are too long, or too short for their labels.

        CTC needs an output for each label, and one between repeats. Validation and test
        utterances with fewer count as errors, but have no loss.

        Args:
            num_outputs: Maps a number of frames to the model's number of outputs.

        Returns:
            A line for each reason.

        Raises:
            ValueError: More than 1 % of a split has too few outputs, or nothing is left.
        """
        lines, kept = [], {}
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
        """Return which utterances have enough outputs for their labels at every speed."""
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
        features, labels = self.features(split), self.labels(split)
        if split == "train":
            kept = self.trained
            lengths, variants = features.lengths[kept].max(axis=1), len(self.speeds)
            batches = BucketBatches(
                lengths, self.batch_frames, self.seed, **place, variants=variants
            )
            if not len(batches):
                raise ValueError(
                    f"{len(kept)} training {self.noun} make fewer batches than {world_size} "
                    "devices. Use a smaller data.batch_frames."
                )
        else:
            kept = np.arange(len(features))
            batches = SortedBatches(features.lengths[:, 0], self.batch_frames, **place)
        return loader_of(Batches(features, kept, [labels[i] for i in kept]), batches)


class TextSpeech(SpeechSource):
    """A corpus that has texts and no phones.

    Args:
        root: See `SpeechSource`.
        lexicon: The path of a `Lexicon`; needed for phones.
        options: See `SpeechSource`.

    Raises:
        ValueError: Phones are asked for without a lexicon; or see `SpeechSource`.
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
        """Yield each utterance of a split, without its units, and its words."""

    def read(self, split: str) -> list[Utterance]:
        every = [(utterance, self._units(words)) for utterance, words in self.transcribed(split)]
        found = [utterance._replace(units=units) for utterance, units in every if units]
        if len(found) < len(every):
            self._notes.append(
                f"{len(every) - len(found)} of {len(every)} {split} {self.noun} have a word that "
                "is not in the lexicon, or was not said to its end: left out"
            )
        return found

    def _units(self, words: str) -> tuple[str, ...]:
        """Return the units of a text, or none where they would have to be guessed."""
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
        features: The features of a split, at each speed.
        kept: The indices of the utterances to batch.
        labels: The labels of these utterances.
    """

    def __init__(self, features: Features, kept: np.ndarray, labels: Sequence[list[int]]):
        self.features = features
        self.kept = kept
        self.labels = labels

    def __getitem__(self, items: list[int]) -> SpeechBatch:
        """Return the batch of `items`, each of which is utterance * number of speeds + speed."""
        speeds = self.features.lengths.shape[1]
        parts = [self.features.get(int(self.kept[i // speeds]), i % speeds) for i in items]
        labels = [self.labels[i // speeds] for i in items]
        lengths, sizes = (torch.tensor([*map(len, rows)]) for rows in (parts, labels))
        frames = [torch.from_numpy(part.astype(np.float32)) for part in parts]
        padded = pad_sequence(frames, batch_first=True)
        rows = [torch.tensor(row, dtype=torch.long) for row in labels]
        targets = pad_sequence(rows, batch_first=True)
        return SpeechBatch(padded, lengths, targets, sizes)
