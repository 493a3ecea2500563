"""The job behind transcribe.py: recordings in, phones out."""

import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import soundfile
import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import track
from torch import Tensor

from linear_transformers.ctc import NGram, align, beam_search, greedy
from linear_transformers.data.speech import Waveform, log_mel, read_audio, recordings_in
from linear_transformers.data.speech.audio import converted
from linear_transformers.data.speech.features import SHIFT_MS
from linear_transformers.data.speech.manifest import Utterance, read_manifest
from linear_transformers.runtime.build import checkpoint_path
from linear_transformers.runtime.listening import Listener, Resampler, pieces
from linear_transformers.runtime.sweeps import Outcome
from linear_transformers.runtime.trained import Recogniser, load_recogniser

FORMATS = ("phones", "ctm", "json")


class Window(NamedTuple):
    """Frames `start` to `end` of a recording, of whose scores `kept` count."""

    start: int
    end: int
    kept: slice


def transcribe(cfg: DictConfig) -> Outcome:
    """Write down what recordings say, in the order of their names."""
    _check(cfg)
    path = checkpoint_path(cfg.ckpt, Path(cfg.paths.runs))
    recogniser = load_recogniser(path, device=cfg.device, weights=cfg.weights)
    if cfg.stream:
        return _stream(cfg, recogniser)
    language_model = _language_model(cfg, recogniser)
    recordings: list[Path | None] = (
        [None] if cfg.audio == "-" else [*recordings_in(Path(cfg.audio))]
    )
    start, heard, failed = time.perf_counter(), 0.0, 0
    with _output(cfg.out) as out:
        for recording in _with_bar(recordings):
            try:
                waveform = _read(recording, recogniser.shape.sample_rate)
            except ValueError as error:
                if len(recordings) == 1:
                    raise
                print(f"skipped  {error}", file=sys.stderr)
                failed += 1
                continue
            scores = scores_of(recogniser, waveform, cfg)
            labels = _decode(scores, cfg, language_model)
            seconds = len(waveform) / recogniser.shape.sample_rate
            heard += seconds
            name = "-" if recording is None else str(recording)
            print(
                _written(cfg.format, name, labels, scores, seconds, recogniser),
                file=out,
                flush=True,
            )
    took = time.perf_counter() - start
    _say(f"{len(recordings) - failed} recordings, {heard:.1f} s of audio in {took:.1f} s")
    if failed:
        raise ValueError(f"{failed} of {len(recordings)} recordings could not be read.")
    return Outcome(
        None, {"recordings": len(recordings), "real_time_factor": round(took / heard, 4)}
    )


@torch.inference_mode()
def scores_of(recogniser: Recogniser, waveform: Waveform, cfg: DictConfig) -> Tensor:
    """Scores [t, p] of a recording of any length.

    A causal model hears it through; one that sees everything sees windows, as long as what it
    was trained on, and of two that overlap each gives its half of what they share.
    """
    shape, model = recogniser.shape, recogniser.model
    features = log_mel(waveform, sample_rate=shape.sample_rate, num_mels=shape.num_mels)
    if len(features) == 0:
        raise ValueError("A recording of less than 25 ms was given: it has not a single frame.")
    features = features.to(model.device)
    if model.stack.causal:
        return _heard_through(recogniser, features)
    windows = windows_of(len(features), cfg.window, cfg.overlap, model.subsampling)
    scores = []
    for first in range(0, len(windows), cfg.batch):
        some = windows[first : first + cfg.batch]
        lengths = torch.tensor([w.end - w.start for w in some], device=model.device)
        batch = features.new_zeros(len(some), int(lengths.max()), features.shape[1])
        for row, window in zip(batch, some, strict=True):
            row[: window.end - window.start] = features[window.start : window.end]
        outputs, _ = model(batch, lengths)
        scores += [row[window.kept] for row, window in zip(outputs, some, strict=True)]
    return torch.cat(scores)


def windows_of(num_frames: int, seconds: float, overlap: float, subsampling: int) -> list[Window]:
    """Windows that cover a recording; what is kept of their scores is the scores of all of it."""
    grid = 1000 / SHIFT_MS / subsampling  # outputs a second: windows begin where outputs do
    size, shared = max(2, round(seconds * grid)), round(overlap * grid)
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
        part, state = model.stream(features[None, start : start + piece], state, last=last)
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
    form: str, name: str, labels: list[int], scores: Tensor, seconds: float, recogniser: Recogniser
) -> str:
    """A recording's transcript: a line of phones, a line a phone, or an object."""
    shape = recogniser.shape
    if form == "phones":
        return f"{name}\t{shape.decode(labels)}" if name != "-" else shape.decode(labels)
    frame = SHIFT_MS / 1000 * recogniser.model.subsampling
    spans: list[dict[str, Any]] = [
        {
            "label": shape.labels[span.label - 1],
            "start": round(span.start * frame, 3),
            "duration": round((span.end - span.start) * frame, 3),
            "probability": round(span.probability, 3),
        }
        for span in align(scores, labels)
    ]
    if form == "ctm":
        return "\n".join(
            f"{Path(name).stem} 1 {s['start']:.3f} {s['duration']:.3f} {s['label']} "
            f"{s['probability']:.3f}"
            for s in spans
        )
    return json.dumps(
        {
            "audio": name, "duration": round(seconds, 3),
            shape.kind: shape.decode(labels), "spans": spans,
        },
        ensure_ascii=False,
    )  # fmt: skip


def _stream(cfg: DictConfig, recogniser: Recogniser) -> Outcome:
    """Print what is heard as it is heard, then how long that took."""
    if cfg.audio != "-" and len(recordings_in(Path(cfg.audio))) > 1:
        raise ValueError(f"stream=true hears one recording; {cfg.audio} holds several.")
    listener, shape = Listener(recogniser), recogniser.shape
    resampler, busy, heard, rate = None, 0.0, 0, shape.sample_rate
    separator = " " if shape.kind == "phones" else ""

    def told(labels: list[int]) -> None:
        if labels:
            print(shape.decode(labels), end=separator, flush=True)

    for samples, rate in pieces(cfg.audio, cfg.piece, shape.sample_rate):
        start = time.perf_counter()
        resampler = resampler or Resampler(rate, shape.sample_rate)
        told(listener.hear(resampler(torch.from_numpy(samples.mean(axis=1)))))
        busy, heard = busy + time.perf_counter() - start, heard + len(samples)
    if resampler is None:
        raise ValueError(f"{cfg.audio} holds no audio: it has no samples.")
    start = time.perf_counter()
    told(listener.hear(resampler(torch.zeros(0), last=True), last=True))
    busy += time.perf_counter() - start
    print(flush=True)
    seconds = heard / rate
    _say(f"{seconds:.1f} s of audio in {busy:.2f} s: real-time factor {busy / seconds:.3f}")
    return Outcome(None, {"real_time_factor": round(busy / seconds, 4)})


def _read(recording: Path | None, sample_rate: int) -> Waveform:
    if recording is not None:
        return read_audio(recording, sample_rate)
    data = sys.stdin.buffer.read()
    if data[:4] in (b"RIFF", b"fLaC", b"OggS"):
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    else:
        whole = data[: len(data) - len(data) % 2]
        samples, rate = (
            np.frombuffer(whole, dtype="<i2").astype(np.float32)[:, None] / 2**15,
            sample_rate,
        )
    if len(samples) == 0:
        raise ValueError("Standard input holds no audio: it has no samples.")
    return converted(samples, rate, sample_rate, "Standard input")


def _language_model(cfg: DictConfig, recogniser: Recogniser) -> NGram | None:
    if cfg.lm is None:
        return None
    shape, sequences = recogniser.shape, []
    for line in read_manifest(Path(cfg.lm), shape.kind):
        if isinstance(line, Utterance):
            sequences.append(shape.encode(line.units))
        else:
            raise ValueError(f"lm: {line}")
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
    if not 0 <= cfg.overlap < cfg.window or cfg.batch < 1 or cfg.piece <= 0:
        raise ValueError(
            f"window={cfg.window} must be longer than overlap={cfg.overlap}, both in seconds, "
            f"batch={cfg.batch} at least 1 and piece={cfg.piece} above 0."
        )


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


def _with_bar(recordings: list[Path | None]) -> Iterator[Path | None]:
    console = Console(stderr=True)
    hidden = not console.is_terminal or len(recordings) == 1
    return iter(track(recordings, "transcribing", console=console, transient=True, disable=hidden))


def _say(line: str) -> None:
    print(line, file=sys.stderr)
