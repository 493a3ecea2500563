"""What corpora of speech share: features in a cache, and batches of like length over them."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from linear_transformers.ctc import frames_needed
from linear_transformers.data.base import DataModule
from linear_transformers.data.batches import BucketBatches, SortedBatches
from linear_transformers.data.speech.cache import FeatureCache, features_of
from linear_transformers.data.speech.labels import KINDS, SpeechShape, labels_of
from linear_transformers.data.speech.manifest import Utterance
from linear_transformers.shapes import SpeechBatch

SPLITS = ("train", "val", "test")
# More utterances than this share that cannot be spelt in their frames are a fault of the data.
MOST_DROPPED = 0.01


class AudioOptions(NamedTuple):
    """How recordings are read; see `SpeechDataModule`."""

    sample_rate: int = 16000
    num_mels: int = 40
    convert: bool = True


class SpeechDataModule(DataModule):
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
        seed: See `DataModule`.

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
        self._utterances: dict[str, list[Utterance]] = {}
        self._features: dict[str, FeatureCache] = {}
        self._shape: SpeechShape | None = None
        self._spoken: np.ndarray | None = None

    @abstractmethod
    def read(self, split: str) -> list[Utterance]:
        """The utterances of `train`, `val` or `test`.

        Raises:
            ValueError: The corpus cannot be read.
        """

    def utterances(self, split: str) -> list[Utterance]:
        """The same, read once; of `train`, those that are not too long."""
        if split not in self._utterances:
            read = self.read(split)
            if split == "train":
                read = [u for u in read if (u.duration or 0) <= self.max_seconds]
            if not read:
                raise ValueError(f"There are no utterances to {split} on.")
            self._utterances[split] = read
        return self._utterances[split]

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

    def check_sizes(self, world_size: int) -> None:
        for split in SPLITS:
            count = len(self.features(split))
            if count < world_size:
                raise ValueError(
                    f"{count} {self.noun} to {split} on are fewer than {world_size} devices."
                )

    def leave_out_unspeakable(self, num_outputs: Callable[[int], int]) -> str:
        """Leave out of training what CTC cannot spell: fewer outputs than labels and repeats.

        Args:
            num_outputs: Of a model, for so many frames.

        Returns:
            How many there are, in words; nothing if there are none.

        Raises:
            ValueError: It is more than 1 % of the utterances.
        """
        utterances, lengths = self.utterances("train"), self.features("train").lengths.min(axis=1)
        self._spoken = np.array(
            [
                num_outputs(int(length)) >= frames_needed(self.shape.encode(utterance.units))
                for utterance, length in zip(utterances, lengths, strict=True)
            ]
        )
        short = np.flatnonzero(~self._spoken)
        if not len(short):
            return ""
        message = (
            f"{len(short)} of {len(lengths)} training {self.noun} have fewer frames than labels "
            f"after subsampling, {utterances[short[0]].audio} for one"
        )
        if len(short) > MOST_DROPPED * len(lengths):
            raise ValueError(f"{message}. Use a smaller task.encoder.subsampling.")
        return f"{message}; they are left out"

    def train_dataloader(self) -> DataLoader:
        features = self.features("train")
        kept = np.arange(len(features)) if self._spoken is None else np.flatnonzero(self._spoken)
        rank, world_size = self.world()
        batches = BucketBatches(
            features.lengths[kept].max(axis=1), self.batch_frames, self.seed,
            rank=rank, world_size=world_size, variants=len(self.speeds),
        )  # fmt: skip
        return self._loader("train", batches, kept)

    def val_dataloader(self) -> DataLoader:
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._evaluation_loader("test")

    def _evaluation_loader(self, split: str) -> DataLoader:
        lengths = self.features(split).lengths[:, 0]
        rank, world_size = self.world()
        batches = SortedBatches(lengths, self.batch_frames, rank=rank, world_size=world_size)
        return self._loader(split, batches, np.arange(len(lengths)))

    def _loader(
        self, split: str, batches: BucketBatches | SortedBatches, kept: np.ndarray
    ) -> DataLoader:
        utterances, shape = self.utterances(split), self.shape
        labels = [shape.encode(utterances[i].units) for i in kept]
        # batch_size=None: the sampler's items are whole lists. No worker processes: the features
        # are mapped into memory.
        return DataLoader(
            Batches(self.features(split), kept, labels),
            batch_size=None,
            sampler=batches,
            pin_memory=torch.cuda.is_available(),
        )


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
