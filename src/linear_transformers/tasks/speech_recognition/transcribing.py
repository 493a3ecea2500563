"""Transcription of recordings, for transcribe.py."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TextIO

import numpy as np
from annotated_types import Ge, Le
from rich.console import Console
from rich.progress import track
from torch import Tensor

from linear_transformers.calls import call_again
from linear_transformers.config.messages import counted
from linear_transformers.config.ranges import Nats, NotNegative, Seconds, Size
from linear_transformers.ctc import NGram, confusions, error_rates
from linear_transformers.data.speech import SpeechShape, read_audio, recordings_in
from linear_transformers.data.speech.incoming import from_standard_input, pieces
from linear_transformers.data.speech.manifest import Utterance, read_manifest
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.stopping import Stopped
from linear_transformers.tasks.base import Use, Watch
from linear_transformers.tasks.speech_recognition.model import (
    SpeechModel,
    features_of,
    recognised,
)
from linear_transformers.tasks.speech_recognition.scoring import scores_of
from linear_transformers.tasks.speech_recognition.transcripts import Format, Transcript

MANIFEST = ".jsonl"
LANGUAGE_MODEL = {"lm_order": 3, "lm_weight": 0.5, "lm_bonus": 1.0}  # where it is not given
PIECE = 0.1  # seconds


class Listed(NamedTuple):
    """A recording that is to be read.

    Attributes:
        name: The file's path, or `-`.
        reference: The labels of what is said, where it is known.
        duration: The duration in seconds, where a manifest says so.
    """

    name: str
    reference: list[int] | None = None
    duration: float | None = None


class Recording(NamedTuple):
    """A recording that was read.

    Attributes:
        name: The file's path, or `-`.
        seconds: The duration.
        features: The features [t, f].
        reference: The labels of what is said, where it is known.
    """

    name: str
    seconds: float
    features: Tensor
    reference: list[int] | None


@dataclass(kw_only=True)
class Transcribe(Use[SpeechModel]):
    """Transcribe recordings. See conf/transcribe.yaml for the options."""

    needs: ClassVar = ("audio=FILE",)
    audio: str
    format: Format
    out: str | None
    continue_: bool
    beam: Size | None
    lm: str | None
    lm_order: Annotated[int, Ge(1), Le(100)] | None
    lm_weight: Nats | None
    lm_bonus: Nats | None
    window: Seconds | None
    overlap: NotNegative | None
    batch: Size
    stream: bool
    piece: Seconds | None

    def run(self, trained: SpeechModel, watch: Watch) -> Outcome:
        """Transcribe recordings in the order of their names."""
        self._check()
        return self._stream(trained) if self.stream else self._transcribe(trained)

    def _check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            ValueError: There is a contradiction.
        """
        beyond = self.format != "phones" or self.beam is not None or self.window or self.out
        if self.stream and beyond:
            raise ValueError(
                "stream=true prints the most likely phones as audio arrives: it has no beam, no "
                "window, no other format and no out=FILE."
            )
        if self.continue_ and self.out is None:
            raise ValueError("continue=true finishes a file: give out=FILE.")
        if self.continue_ and self.audio == "-":
            raise ValueError("continue=true needs the recordings again: audio=- has gone by.")
        if self.lm is not None and self.beam is None:
            raise ValueError("lm=MANIFEST weighs the prefixes of a beam: give beam=16, say.")
        for name in LANGUAGE_MODEL:
            if self.lm is None and (value := getattr(self, name)) is not None:
                raise ValueError(
                    f"{name}={value} is of the model of phones that lm=MANIFEST names. Give it, "
                    f"or leave {name} out."
                )
        if self.piece is not None and not self.stream:
            raise ValueError(
                f"piece={self.piece} is of a stream. Give stream=true, or leave it out."
            )
        window, overlap = self.window, self.overlap
        if overlap is not None and (window is None or overlap >= window):
            raise ValueError(f"overlap={overlap} needs a longer window=SECONDS, found {window}.")

    def _transcribe(self, trained: SpeechModel) -> Outcome:
        """Write transcripts, and say how long they took and what could not be read."""
        shape, subsampling = trained.shape, trained.task.model.subsampling
        language_model = self._language_model(shape)
        recordings = every_one = self._recordings(shape)
        transcript = Transcript(self.format, Path(self.audio))
        names = [listed.name for listed in every_one]
        transcript.check(names)
        out = Path(str(self.out))
        if self.continue_ and out.is_file():  # else it was stopped before the first one
            recordings = [every_one[i] for i in transcript.left(out, names)]
        start, seconds, said, heard, faults = time.perf_counter(), 0.0, [], [], []
        with self._output() as file:
            for group in _groups(_with_bar(recordings), shape, self.batch, faults):
                for one, labels, scores in self._recognised(group, trained, language_model):
                    lines = transcript.lines(
                        one.name, one.seconds, labels, scores, shape, subsampling
                    )
                    file.write("".join(f"{line}\n" for line in lines))
                    file.flush()
                    seconds += one.seconds
                    if one.reference is not None:
                        said.append(one.reference)
                        heard.append(labels)
        if len(faults) == len(recordings) == 1:
            raise ValueError(faults[0])
        took, before = time.perf_counter() - start, len(every_one) - len(recordings)
        read = len(recordings) - len(faults)
        _say(f"{counted(read, 'recording')}, {seconds:.1f} s of audio in {took:.1f} s")
        if before:
            _say(f"{counted(before, 'recording')} in {out} already")
        rates = _rates(said, heard, shape)
        if rates:
            these = f" of the last {counted(len(said), 'recording')}" if before else ""
            each = (f"{name.replace('_', ' ')} {rate:.2f}" for name, rate in rates.items())
            _say(f"% of {shape.kind}{these}: {', '.join(each)}")
        for fault in faults:
            _say(f"skipped  {fault}")
        if faults:
            raise ValueError(f"{len(faults)} of {len(recordings)} recordings could not be read.")
        return Outcome(None, {"recordings": len(recordings), "seconds": round(took, 3), **rates})

    def _recognised(
        self, group: list[Recording], trained: SpeechModel, language_model: NGram | None
    ) -> Iterator[tuple[Recording, list[int], Tensor]]:
        """Yield recordings, the labels that are recognised in each, and the scores [t, p]."""
        every = scores_of(
            trained.task.model, [recording.features for recording in group],
            window=self.window, overlap=self.overlap, batch=self.batch,
        )  # fmt: skip
        for recording, scores in zip(group, every, strict=True):
            labels = recognised(
                scores, beam=self.beam, language_model=language_model,
                weight=self._of_language_model("lm_weight"),
                bonus=self._of_language_model("lm_bonus") if language_model else 0.0,
            )  # fmt: skip
            yield recording, labels, scores

    def _recordings(self, shape: SpeechShape) -> list[Listed]:
        """Return the recordings' names, and their reference labels, which only a manifest has."""
        path = Path(self.audio)
        if path.suffix == MANIFEST:
            utterances = _manifest(path, shape, "audio")
            return [Listed(str(u.audio), labels, u.duration) for u, labels in utterances]
        return [Listed("-")] if self.audio == "-" else [Listed(str(x)) for x in recordings_in(path)]

    def _language_model(self, shape: SpeechShape) -> NGram | None:
        if self.lm is None:
            return None
        sequences = [labels for _, labels in _manifest(Path(self.lm), shape, "lm")]
        return NGram(sequences, len(shape.labels), order=self._of_language_model("lm_order"))

    def _of_language_model(self, name: str) -> Any:
        """Return an option of the language model."""
        value = getattr(self, name)
        return LANGUAGE_MODEL[name] if value is None else value

    @contextmanager
    def _output(self) -> Iterator[TextIO]:
        """Open standard output, or a new file, or the one that is continued."""
        if self.out is None:
            yield sys.stdout
            return
        path = Path(self.out)
        try:
            file = path.open("a" if self.continue_ else "x", encoding="utf-8")
        except FileExistsError as error:
            raise ValueError(
                f"out={path} exists already. Choose another name, or finish it by continue=true."
            ) from error
        try:
            with file:
                yield file
        except Stopped as stopped:
            stopped.lines.append(f"kept     what is finished, in {path}")
            if self.audio != "-":
                stopped.lines.append(f"next     {call_again('transcribe', 'continue=true')}")
            raise
        finally:
            if path.is_file() and not path.stat().st_size:
                path.unlink()  # nothing was transcribed

    def _stream(self, trained: SpeechModel) -> Outcome:
        """Print labels as they are recognised, then the real-time factor."""
        audio = self.audio
        if audio != "-":
            found = recordings_in(Path(audio))
            if len(found) > 1 or found[0].suffix == MANIFEST:
                raise ValueError(f"stream=true takes one recording; {audio} holds several.")
            audio = str(found[0])
        stream = trained.stream()  # refuses a model that cannot, before it waits for sound
        busy, num_samples, rate = 0.0, 0, 0

        def hear(samples: np.ndarray, *, last: bool = False) -> float:
            start, written = time.perf_counter(), len(stream.text)
            stream.hear(samples, last=last)
            print(stream.text[written:], end="", flush=True)
            return time.perf_counter() - start

        try:
            for samples, rate in pieces(audio, self.piece or PIECE, trained.shape.sample_rate):
                if not num_samples:
                    stream = trained.stream(sample_rate=rate)
                busy, num_samples = busy + hear(samples.mean(axis=1)), num_samples + len(samples)
            if not num_samples:
                name = "Standard input" if audio == "-" else audio
                raise ValueError(f"{name} holds no audio: it has no samples.")
            busy += hear(np.zeros(0, np.float32), last=True)
        finally:
            if num_samples:
                print(flush=True)  # what is said of a fault is on a line of its own
        seconds = num_samples / rate
        _say(f"{seconds:.1f} s of audio in {busy:.2f} s: real-time factor {busy / seconds:.3f}")
        return Outcome(None, {"real_time_factor": round(busy / seconds, 4)})


def _manifest(path: Path, shape: SpeechShape, option: str) -> Iterator[tuple[Utterance, list[int]]]:
    """Yield a manifest's utterances and their labels."""
    for line in read_manifest(path, shape.kind):
        if not isinstance(line, Utterance):
            fault, unlike, _ = line.partition(" Give data.")
            more = f" The model has {shape.kind}: give a manifest with those." if unlike else ""
            raise ValueError(f"{option}: {fault}{more}")
        try:
            yield line, shape.encode(line.units)
        except ValueError as error:
            raise ValueError(f"{option}: {line.place}: {error}") from error


def _groups(
    recordings: Iterable[Listed],
    shape: SpeechShape,
    batch: int,
    faults: list[str],
) -> Iterator[list[Recording]]:
    """Yield recordings in groups of `batch`, and add what is wrong with others to `faults`."""
    group: list[Recording] = []
    for listed in recordings:
        try:
            group.append(_read(listed, shape))
        except (ValueError, OSError) as error:
            faults.append(str(error))
        if len(group) == batch:
            yield group
            group = []
    if group:
        yield group


def _read(listed: Listed, shape: SpeechShape) -> Recording:
    name, reference, duration = listed
    if name == "-":
        waveform = from_standard_input(shape.sample_rate)
    else:
        waveform = read_audio(Path(name), shape.sample_rate, duration=duration)
    seconds = len(waveform) / shape.sample_rate
    return Recording(name, seconds, features_of(waveform, shape, name), reference)


def _rates(said: list[list[int]], heard: list[list[int]], shape: SpeechShape) -> dict[str, float]:
    """Return the errors in % over all recordings whose labels are known; nothing without any."""
    if not said:
        return {}
    rates = error_rates(confusions(said, heard, len(shape.labels)))
    names = {"errors": f"{shape.unit}_error_rate"}
    return {names.get(name, name): round(rate.item(), 4) for name, rate in rates.items()}


def _with_bar(recordings: list[Any]) -> Iterable[Any]:
    console = Console(stderr=True)
    hidden = not console.is_terminal or len(recordings) == 1
    return track(recordings, "transcribing", console=console, transient=True, disable=hidden)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
