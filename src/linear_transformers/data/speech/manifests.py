"""A corpus given by a manifest for each split."""

from pathlib import Path
from typing import Any

from linear_transformers.config.messages import counted
from linear_transformers.config.ranges import Part, ranged
from linear_transformers.ctc import frames_needed
from linear_transformers.data.speech.audio import read_audio
from linear_transformers.data.speech.base import SpeechSource
from linear_transformers.data.speech.features import num_frames
from linear_transformers.data.speech.labels import in_case_of, labels_of
from linear_transformers.data.speech.lexicon import Lexicon
from linear_transformers.data.speech.manifest import Utterance, read_manifest


class ManifestSpeech(SpeechSource):
    """Recordings that manifests list as JSON lines: see `manifest`.

    Args:
        root: See `SpeechSource`.
        train: The training manifest.
        val: The validation manifest; None holds out speakers of `train`.
        test: The test manifest.
        lexicon: The path of a `Lexicon`, for lines that have a text and no phones.
        val_share: The share of the speakers of `train` to hold out if `val` is None.
        validate: Whether to read every recording first, and report all faults.
        options: See `SpeechSource`.

    Raises:
        ValueError: See `SpeechSource` and `Lexicon`.
    """

    @ranged
    def __init__(
        self,
        root: str,
        *,
        train: str,
        val: str | None,
        test: str,
        lexicon: str | None = None,
        val_share: Part = 0.1,
        validate: bool = False,
        **options: Any,
    ):
        super().__init__(root, **options)
        given = {"train": train, "val": val, "test": test}
        self.paths = {split: Path(path) for split, path in given.items() if path}
        self.lexicon = Lexicon(Path(lexicon)) if lexicon else None
        self.val_share = val_share
        self.validate = validate
        self._validated = False

    def read(self, split: str) -> list[Utterance]:
        if self.validate and not self._validated:
            self._check_everything()
            self._validated = True
        path = self.paths[split if split in self.paths else "train"]
        found = utterances_of(path, self.kind, self.lexicon)
        if split == "test" or "val" in self.paths:
            return found
        return divided(found, self.val_share, validation=split == "val")

    def _check_everything(self) -> None:
        """Check every line and recording of every manifest.

        Raises:
            ValueError: There are faults; the message lists all of them.
        """
        faults, places, splits = [], {}, {}
        for split, path in self.paths.items():
            first = splits.setdefault(path, split)
            if first != split:
                faults.append(f"data.{split}={path} is the manifest of data.{first}, too.")
        lines = {path: list(read_manifest(path, self.kind, self.lexicon)) for path in splits}
        trained = [line for line in lines[self.paths["train"]] if isinstance(line, Utterance)]
        if "val" not in self.paths:
            trained = divided(trained, self.val_share, validation=False)
        known = set(labels_of([utterance.units for utterance in trained], self.kind))
        for line in (line for path in splits for line in lines[path]):
            if isinstance(line, str):
                faults.append(line)
                continue
            first = places.setdefault(line.audio.resolve(), line.place)
            if first != line.place:
                faults.append(f"{line.place}: {line.audio} is that of {first}, too.")
            faults += self._faults(line, known)
        if faults:
            found = "\n".join(faults)
            raise ValueError(f"{counted(len(faults), 'fault')} in the data:\n{found}")

    def _faults(self, utterance: Utterance, known: set[str]) -> list[str]:
        """Return the faults of a recording and of its transcript."""
        found = []
        units = in_case_of(utterance.units, known)
        unknown = sorted(set(units) - known)
        if unknown:
            found.append(f"{', '.join(map(repr, unknown))} is not said in training.")
        try:
            waveform = read_audio(
                utterance.audio, self.sample_rate, duration=utterance.duration, convert=self.convert
            )
        except ValueError as error:
            found.append(str(error))
        else:
            frames = num_frames(len(waveform), self.sample_rate)
            if frames < frames_needed(units):
                found.append(f"{frames} frames are too few for {len(units)} {self.kind}.")
        return [f"{utterance.place}: {fault}" for fault in found]


def utterances_of(path: Path, kind: str, lexicon: Lexicon | None = None) -> list[Utterance]:
    """Return the utterances of a manifest.

    Args:
        path: The manifest.
        kind: See `units_of`.
        lexicon: The lexicon, for lines that have a text and no phones.

    Raises:
        ValueError: A line has a fault, or see `read_manifest`.
    """
    lines = list(read_manifest(path, kind, lexicon))
    faults = [line for line in lines if isinstance(line, str)]
    if faults:
        more = f" ({len(faults) - 1} more: data.validate=true lists them)" if faults[1:] else ""
        raise ValueError(f"{faults[0]}{more}")
    return [line for line in lines if isinstance(line, Utterance)]


def divided(utterances: list[Utterance], share: float, *, validation: bool) -> list[Utterance]:
    """Return those of the speakers that are held out for validation, or of the others.

    A share of the speakers is held out, evenly spaced in sorted order: at least one, and never all.
    A recording stands for an unknown speaker.

    Args:
        utterances: All of them.
        share: The share of the speakers to hold out.
        validation: Whether to return those that are held out.

    Raises:
        ValueError: There is one speaker.
    """
    speakers = [u.speaker or str(u.audio) for u in utterances]
    different = sorted({*speakers})
    if len(different) == 1:
        raise ValueError(
            f"All training utterances are of one speaker, {different[0]}, and speakers are held "
            "out for validation. Give data.val=FILE."
        )
    every = 1 / share
    held = [s for i, s in enumerate(different) if (i + 0.5 - every / 2) % every < 1]
    held = {*(held or different[-1:])[: len(different) - 1]}
    return [u for u, s in zip(utterances, speakers, strict=True) if (s in held) == validation]
