"""The job behind transcribe.py: recordings in, phones out."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import track
from torch import Tensor

from linear_transformers.ctc import NGram, align, beam_search, greedy
from linear_transformers.data.speech import SpeechShape, log_mel, read_audio, recordings_in
from linear_transformers.data.speech.features import SHIFT_MS, shift_samples
from linear_transformers.data.speech.manifest import Utterance, read_manifest
from linear_transformers.runtime.build import checkpoint_path
from linear_transformers.runtime.listening import (
    Listener,
    Resampler,
    from_standard_input,
    pieces,
)
from linear_transformers.runtime.sweeps import Outcome
from linear_transformers.runtime.trained import Recogniser, load_recogniser
from linear_transformers.tasks.speech_recognition import PhoneErrors

FORMATS = ("phones", "ctm", "json")
MANIFEST = ".jsonl"


class Window(NamedTuple):
    """Frames `start` to `end` of a recording, of whose scores `kept` count."""

    start: int
    end: int
    kept: slice


class Heard(NamedTuple):
    """A recording that was read: what to call it, its length in seconds, its features."""

    name: str
    seconds: float
    features: Tensor


def transcribe(cfg: DictConfig) -> Outcome:
    """Write down what recordings say, in the order of their names."""
    _check(cfg)
    path = checkpoint_path(cfg.ckpt, Path(cfg.paths.runs))
    recogniser = load_recogniser(path, device=cfg.device, weights=cfg.weights)
    if cfg.stream:
        return _stream(cfg, recogniser)
    language_model = _language_model(cfg, recogniser)
    said = _said(cfg, recogniser.shape)
    recordings, errors = list(said), PhoneErrors(len(recogniser.shape.labels))
    start, seconds, faults = time.perf_counter(), 0.0, []
    with _output(cfg.out) as out:
        for group in _groups(_with_bar(recordings), recogniser, cfg.batch, faults):
            every = scores_of(recogniser, [heard.features for heard in group], cfg)
            for heard, scores in zip(group, every, strict=True):
                labels = _decode(scores, cfg, language_model)
                for line in _written(cfg, heard, labels, scores, recogniser):
                    print(line, file=out, flush=True)
                seconds += heard.seconds
                if (reference := said[heard.name]) is not None:
                    errors.update([reference], [labels])
    if len(faults) == len(recordings) == 1:
        raise ValueError(faults[0])
    took = time.perf_counter() - start
    _say(f"{len(recordings) - len(faults)} recordings, {seconds:.1f} s of audio in {took:.1f} s")
    rates = _rates(errors) if Path(cfg.audio).suffix == MANIFEST else {}
    if rates:
        each = ", ".join(f"{name.replace('_', ' ')} {rate:.2f}" for name, rate in rates.items())
        _say(f"% of {recogniser.shape.kind}: {each}")
    for fault in faults:
        _say(f"skipped  {fault}")
    if faults:
        raise ValueError(f"{len(faults)} of {len(recordings)} recordings could not be read.")
    return Outcome(None, {"recordings": len(recordings), "seconds": round(took, 3), **rates})


def _said(cfg: DictConfig, shape: SpeechShape) -> dict[str, list[int] | None]:
    """The recordings, and what is said in them where the audio is a manifest."""
    path = Path(cfg.audio)
    if path.suffix == MANIFEST:
        return {str(u.audio): shape.encode(u.units) for u in _manifest(path, shape, "audio")}
    names = ["-"] if cfg.audio == "-" else [str(recording) for recording in recordings_in(path)]
    return dict.fromkeys(names)


def _manifest(path: Path, shape: SpeechShape, option: str) -> Iterator[Utterance]:
    for line in read_manifest(path, shape.kind):
        if not isinstance(line, Utterance):
            raise ValueError(f"{option}: {line}")
        yield line


def _rates(errors: PhoneErrors) -> dict[str, float]:
    return {name: round(rate.item(), 4) for name, rate in errors.compute().items()}


def _groups(
    recordings: Iterable[str], recogniser: Recogniser, batch: int, faults: list[str]
) -> Iterator[list[Heard]]:
    """Recordings, so many at a time. What cannot be read is added to `faults`."""
    group: list[Heard] = []
    for recording in recordings:
        try:
            group.append(_read(recording, recogniser))
        except (ValueError, OSError) as error:
            faults.append(str(error))
        if len(group) == batch:
            yield group
            group = []
    if group:
        yield group


def _read(recording: str, recogniser: Recogniser) -> Heard:
    shape = recogniser.shape
    if recording == "-":
        waveform = from_standard_input(shape.sample_rate)
    else:
        waveform = read_audio(Path(recording), shape.sample_rate)
    features = log_mel(waveform, sample_rate=shape.sample_rate, num_mels=shape.num_mels)
    if len(features) == 0:
        raise ValueError(f"{recording} lasts less than 25 ms: it has not a single frame.")
    return Heard(recording, len(waveform) / shape.sample_rate, features)


@torch.inference_mode()
def scores_of(recogniser: Recogniser, features: Sequence[Tensor], cfg: DictConfig) -> list[Tensor]:
    """Scores [t, p] of recordings of any length.

    A causal model hears a long one through. One that sees everything sees windows, as long as the
    longest utterance it was trained on if nothing else is asked for; of two that overlap each
    gives its half of what they share.
    """
    model = recogniser.model
    seconds = cfg.window or int(model.longest) * SHIFT_MS / 1000
    shared = min(2.0, seconds / 4) if cfg.overlap is None else cfg.overlap
    longest = seconds * 1000 / SHIFT_MS
    parts: list[list[Tensor]] = [[] for _ in features]
    windows: list[tuple[int, Window]] = []
    for i, frames in enumerate(features):
        if model.stack.causal and len(frames) > longest:
            parts[i].append(_heard_through(recogniser, frames))
            continue
        found = windows_of(len(frames), seconds, shared, model.subsampling)
        windows += [(i, window) for window in found]
    for first in range(0, len(windows), cfg.batch):
        some = windows[first : first + cfg.batch]
        lengths = torch.tensor([window.end - window.start for _, window in some])
        batch = torch.zeros(len(some), int(lengths.max()), recogniser.shape.num_mels)
        for row, (i, window) in zip(batch, some, strict=True):
            row[: window.end - window.start] = features[i][window.start : window.end]
        outputs, _ = model(batch.to(model.device), lengths.to(model.device))
        for row, (i, window) in zip(outputs, some, strict=True):
            parts[i].append(row[window.kept])
    return [torch.cat(part) for part in parts]


def windows_of(num_frames: int, seconds: float, overlap: float, subsampling: int) -> list[Window]:
    """Windows that cover a recording; what is kept of their scores is the scores of all of it."""
    grid = 1000 / SHIFT_MS / subsampling  # outputs a second: windows begin where outputs do
    size = max(2, round(seconds * grid))
    shared = min(round(overlap * grid), size - 1)
    total = -(-num_frames // subsampling)
    starts = [0]
    while starts[-1] + size < total:
        starts.append(min(starts[-1] + size - shared, total - size))
    edges = [0, *((a + size + b) // 2 for a, b in pairwise(starts)), total]
    return [
        Window(
            start * subsampling,
            min((start + size) * subsampling, num_frames),
            slice(begin - start, end - start),
        )
        for start, begin, end in zip(starts, edges[:-1], edges[1:], strict=True)
    ]


def _heard_through(recogniser: Recogniser, features: Tensor) -> Tensor:
    model = recogniser.model
    state, scores, piece = model.init_state(), [], 1000
    for start in range(0, len(features), piece):
        last = start + piece >= len(features)
        frames = features[None, start : start + piece].to(model.device)
        part, state = model.stream(frames, state, last=last)
        scores.append(part[0])
    return torch.cat(scores)


def _decode(scores: Tensor, cfg: DictConfig, language_model: NGram | None) -> list[int]:
    if cfg.beam is None:
        return greedy(scores[None], torch.tensor([len(scores)]))[0]
    return beam_search(
        scores.cpu(), beam=cfg.beam, language_model=language_model,
        weight=cfg.lm_weight, bonus=cfg.lm_bonus if language_model else 0.0,
    )  # fmt: skip


def _written(
    cfg: DictConfig, heard: Heard, labels: list[int], scores: Tensor, recogniser: Recogniser
) -> list[str]:
    """A recording's transcript: a line of phones, a line a phone, or an object."""
    shape = recogniser.shape
    text = shape.decode(labels)
    if cfg.format == "phones":
        return [text if heard.name == "-" else f"{heard.name}\t{text}"]
    rate = shape.sample_rate
    frame = shift_samples(rate) / rate * recogniser.model.subsampling
    spans: list[dict[str, Any]] = [
        {
            "label": shape.labels[span.label - 1],
            "start": round(span.start * frame, 3),
            "duration": round((span.end - span.start) * frame, 3),
            "probability": round(span.probability, 3),
        }
        for span in align(scores, labels)
    ]
    if cfg.format == "json":
        about = {"audio": heard.name, "duration": round(heard.seconds, 3)}
        return [json.dumps({**about, shape.kind: text, "spans": spans}, ensure_ascii=False)]
    # The id in a CTM has no spaces, nor has a label.
    inside = Path(cfg.audio).is_dir()
    name = Path(heard.name).relative_to(cfg.audio) if inside else Path(Path(heard.name).name)
    utterance = str(name.with_suffix("")).replace(" ", "_")
    return [
        f"{utterance} 1 {span['start']:.3f} {span['duration']:.3f} "
        f"{'<space>' if span['label'] == ' ' else span['label']} {span['probability']:.3f}"
        for span in spans
    ]


def _stream(cfg: DictConfig, recogniser: Recogniser) -> Outcome:
    """Print what is heard as it is heard, then how long that took."""
    audio = cfg.audio
    if audio != "-":
        found = recordings_in(Path(audio))
        if len(found) > 1:
            raise ValueError(f"stream=true hears one recording; {audio} holds several.")
        audio = str(found[0])
    listener, shape = Listener(recogniser), recogniser.shape
    resampler, busy, heard, rate = None, 0.0, 0, shape.sample_rate
    separator = " " if shape.kind == "phones" else ""

    def told(labels: list[int]) -> None:
        if labels:
            print(shape.decode(labels), end=separator, flush=True)

    for samples, rate in pieces(audio, cfg.piece, shape.sample_rate):
        start = time.perf_counter()
        resampler = resampler or Resampler(rate, shape.sample_rate)
        told(listener.hear(resampler(torch.from_numpy(samples.mean(axis=1)))))
        busy, heard = busy + time.perf_counter() - start, heard + len(samples)
    if resampler is None:
        raise ValueError(f"{audio} holds no audio: it has no samples.")
    start = time.perf_counter()
    told(listener.hear(resampler(torch.zeros(0), last=True), last=True))
    busy += time.perf_counter() - start
    print(flush=True)
    seconds = heard / rate
    _say(f"{seconds:.1f} s of audio in {busy:.2f} s: real-time factor {busy / seconds:.3f}")
    return Outcome(None, {"real_time_factor": round(busy / seconds, 4)})


def _language_model(cfg: DictConfig, recogniser: Recogniser) -> NGram | None:
    if cfg.lm is None:
        return None
    shape = recogniser.shape
    sequences = [shape.encode(u.units) for u in _manifest(Path(cfg.lm), shape, "lm")]
    return NGram(sequences, len(shape.labels), order=cfg.lm_order)


def _check(cfg: DictConfig) -> None:
    if cfg.format not in FORMATS:
        raise ValueError(f"format={cfg.format} is unknown. Choose one of {list(FORMATS)}.")
    if cfg.stream and (cfg.format != "phones" or cfg.beam is not None or cfg.out is not None):
        raise ValueError(
            "stream=true prints the most likely phones as they come: it has no beam, no other "
            "format and no out=FILE."
        )
    if cfg.lm is not None and cfg.beam is None:
        raise ValueError("lm=MANIFEST weighs the prefixes of a beam: give beam=16, say.")
    if cfg.batch < 1 or cfg.piece <= 0:
        raise ValueError(f"batch={cfg.batch} must be at least 1, and piece={cfg.piece} above 0.")
    window, overlap = cfg.window, cfg.overlap
    if (window is not None and window <= 0) or (overlap is not None and overlap < 0):
        raise ValueError(f"window={window} must be above 0, and overlap={overlap} not below.")
    if overlap is not None and (window is None or overlap >= window):
        raise ValueError(f"overlap={overlap} needs a longer window=SECONDS, found {window}.")


@contextmanager
def _output(path: str | None) -> Iterator[TextIO]:
    """Standard output, or a new file."""
    if path is None:
        yield sys.stdout
        return
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            yield file
    except FileExistsError as error:
        raise ValueError(f"out={path} exists already. Choose another name.") from error


def _with_bar(recordings: list[str]) -> Iterable[str]:
    console = Console(stderr=True)
    hidden = not console.is_terminal or len(recordings) == 1
    return track(recordings, "transcribing", console=console, transient=True, disable=hidden)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
