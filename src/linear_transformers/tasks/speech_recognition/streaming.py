"""Streaming recognition: a recording piece by piece, in constant memory."""

import io
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import resample

from linear_transformers.ctc import collapse
from linear_transformers.data.speech import SpeechShape, Waveform, log_mel
from linear_transformers.data.speech.audio import (
    KNOWN_SIZES,
    RATES,
    check_length,
    converted,
    finite,
    ratio_of,
    truncated,
    truncated_wav,
)
from linear_transformers.data.speech.features import num_frames, shift_samples
from linear_transformers.models import SpeechEncoder
from linear_transformers.models.dropout import check_eval

# What files begin with that are no WAV: FLAC, Ogg, tagged MP3, SPHERE, AIFF, large WAV, AU, CAF,
# WebM.
PACKED = (
    *(b"fLaC", b"OggS", b"ID3", b"NIST", b"FORM", b"RF64", b"RIFX", b"riff", b".snd", b"caff"),
    b"\x1aE\xdf\xa3",
)
# Of MPEG audio, layer III (ISO 11172-3, 2.4.2.3): kbit/s of version 1 and of the others, rates in
# Hz, and the most bytes of a frame with the next one's header.
KBITS = (
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
MPEG_RATES = (44100, 48000, 32000)
MPEG_FRAME = 1445
FILTER_WIDTH = 6  # of torchaudio's resampling, in zero crossings


class Listener:
    """A streaming recogniser, whose labels are the greedy ones of the whole recording.

    Args:
        model: A causal model, in `eval()` mode.
        shape: The shape of its recordings.

    Raises:
        ValueError: The model is not causal, or it is in `train()` mode.
    """

    def __init__(self, model: SpeechEncoder, shape: SpeechShape):
        check_eval(model)
        self.model = model
        self.shape = shape
        self.state = self.model.init_state()
        self.samples = torch.zeros(0)
        self.last = 0

    def hear(self, waveform: Waveform, *, last: bool = False) -> list[int]:
        """Return the labels that further samples complete.

        Args:
            waveform: The samples, at the model's rate.
            last: Whether the recording ends here.
        """
        scores = self.scores(waveform, last=last)
        path = scores.argmax(-1).tolist()
        labels = collapse(path, before=self.last)
        self.last = path[-1] if path else self.last
        return labels

    @torch.inference_mode()
    def scores(self, waveform: Waveform, *, last: bool = False) -> Tensor:
        """Return the scores [t, p] that further samples complete."""
        self.samples = torch.cat([self.samples, waveform])
        rate = self.shape.sample_rate
        features = log_mel(self.samples, sample_rate=rate, num_mels=self.shape.num_mels)
        self.samples = self.samples[num_frames(len(self.samples), rate) * shift_samples(rate) :]
        features = features.unsqueeze(0).to(self.model.device)
        scores, self.state = self.model.stream(features, self.state, last=last)
        return scores[0]


class Resampler:
    """A streaming resampler, whose samples are those of the whole recording resampled.

    Args:
        rate: The rate of the input, in Hz.
        wanted: The rate of the output, in Hz.
    """

    def __init__(self, rate: int, wanted: int):
        self.step, self.made = ratio_of(rate, wanted)
        # How far the filter looks, in whole steps: pieces are cut where both rates have a sample.
        reach = math.ceil(FILTER_WIDTH * self.step / min(self.step, self.made)) + 1
        self.context = math.ceil(reach / self.step)
        self.samples = torch.zeros(0)
        self.steps_before = 0

    def __call__(self, waveform: Waveform, *, last: bool = False) -> Float[Tensor, "converted"]:
        if self.step == self.made:
            return waveform
        self.samples = torch.cat([self.samples, waveform])
        if len(self.samples) == 0:
            return waveform
        whole = len(self.samples) // self.step
        ready = whole - self.steps_before - self.context
        if not last and ready <= 0:
            return waveform[:0]
        made = resample(self.samples, self.step, self.made)[self.steps_before * self.made :]
        if last:
            return made
        kept = max(0, self.steps_before + ready - self.context)
        self.samples = self.samples[kept * self.step :]
        self.steps_before += ready - kept
        return made[: ready * self.made]


def pieces(audio: str, seconds: float, sample_rate: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield a recording as it arrives: samples [n, channels], and their rate.

    Args:
        audio: The path of a file, or `-` for standard input.
        seconds: The duration of a piece.
        sample_rate: The rate of standard input without a header, in Hz.

    Raises:
        ValueError: The recording is missing, not audio, or truncated.
    """
    if audio == "-":
        yield from _from_pipe(sys.stdin.buffer, seconds, sample_rate)  # pyright: ignore
        return
    try:
        with soundfile.SoundFile(audio) as file:
            check_length(file, audio)
            size = max(1, round(seconds * file.samplerate))
            while len(piece := file.read(size, dtype="float32", always_2d=True)):
                yield finite(piece, audio), file.samplerate
            fault = truncated(Path(audio), file.tell(), file.frames)
    except (soundfile.SoundFileError, TypeError) as error:
        raise ValueError(f"{audio} is not a recording that can be read ({error}).") from error
    if fault:
        raise ValueError(fault)


def from_standard_input(sample_rate: int) -> Waveform:
    """Read all of standard input: a WAV or another file, or bare 16-bit samples at the rate.

    Raises:
        ValueError: There are no samples, or they are truncated or cannot be read.
    """
    data = sys.stdin.buffer.read()
    if not (data.startswith(b"RIFF") or _is_packed(data[:MPEG_FRAME])):
        whole = np.frombuffer(data[: len(data) - len(data) % 2], dtype="<i2")
        samples, rate = whole.astype(np.float32)[:, None] / 2**15, sample_rate
    else:
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                check_length(file, "Standard input")
                samples, rate = file.read(dtype="float32", always_2d=True), file.samplerate
        except soundfile.SoundFileError as error:
            raise ValueError(
                f"Standard input is no recording that can be read ({error})."
            ) from error
        if fault := truncated_wav(io.BytesIO(data), "Standard input"):
            raise ValueError(fault)
    if len(samples) == 0:
        raise ValueError("Standard input holds no audio: it has no samples.")
    return converted(samples, rate, sample_rate, "Standard input")


def _from_pipe(
    pipe: io.BufferedIOBase, seconds: float, sample_rate: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the 16-bit samples of a pipe: a WAV's, or bare ones."""
    rest = pipe.read(8)
    channels, rate, left = 1, sample_rate, math.inf
    if _mpeg_size(rest):
        rest += pipe.read(MPEG_FRAME - len(rest))
    if _is_packed(rest):
        raise ValueError(
            "Standard input is packed audio or no WAV, which cannot be streamed. Decode it: "
            "sox - -b 16 -e signed -t wav -."
        )
    if rest.startswith(b"RIFF"):
        (channels, rate, left), rest = _wav_header(pipe), b""
    width = 2 * channels
    size = width * max(1, round(seconds * rate))
    while True:
        whole = len(rest) - len(rest) % width
        samples = np.frombuffer(rest[:whole], dtype="<i2").astype(np.float32) / 2**15
        rest = rest[whole:]
        yield samples.reshape(-1, channels), rate
        # read1 returns what has arrived, without waiting for a full piece.
        if not (left > 0 and (arrived := pipe.read1(min(size, left)))):  # pyright: ignore
            break
        left -= len(arrived)
        rest += arrived
    if 0 < left < math.inf:
        raise ValueError(f"Standard input ended {left} bytes before its header says: truncated.")


def _is_packed(start: bytes) -> bool:
    """Return whether data begin as a file that is no WAV, and not as bare samples, which may have
    the bytes of one header of MPEG audio, but not of two."""
    size = _mpeg_size(start)
    mp3 = size > 0 and _mpeg_size(start[size:]) > 0
    return mp3 or start.startswith(PACKED) or start[4:8] == b"ftyp"


def _mpeg_size(frame: bytes) -> int:
    """Return the number of bytes of a frame of MPEG audio, layer III, or 0: none begins here."""
    header = int.from_bytes(frame[:4], "big")
    version, layer, kbit, rate, padding = (
        header >> shift & mask for shift, mask in ((19, 3), (17, 3), (12, 15), (10, 3), (9, 1))
    )
    if header >> 21 != 0x7FF or layer != 1 or version == 1 or kbit in (0, 15) or rate == 3:
        return 0
    hertz = MPEG_RATES[rate] // {3: 1, 2: 2, 0: 4}[version]
    samples = 1152 if version == 3 else 576
    return samples // 8 * 1000 * KBITS[version != 3][kbit - 1] // hertz + padding


def _wav_header(pipe: io.BufferedIOBase) -> tuple[int, int, int | float]:
    """Return channels, rate, and the number of bytes that follow: infinite if unknown. The first 8
    bytes were read."""
    pipe.read(4)
    channels = rate = bits = kind = 0
    while len(header := pipe.read(8)) == 8:
        size = int.from_bytes(header[4:], "little")
        if header[:4] == b"data":
            if (kind, bits) not in ((1, 16), (0xFFFE, 16)):
                raise ValueError(
                    f"Standard input is a WAV of {bits}-bit samples of kind {kind}; streams are "
                    "of 16-bit integers. Convert it: sox - -b 16 -e signed -t wav -."
                )
            if channels == 0 or rate not in RATES:
                raise ValueError(
                    f"Standard input is a WAV of {channels} channels at {rate} Hz: its header is "
                    "damaged. Give another recording."
                )
            return channels, rate, size if size in KNOWN_SIZES else math.inf
        body = pipe.read(size + size % 2)
        if header[:4] == b"fmt ":
            kind = int.from_bytes(body[:2], "little")
            channels = int.from_bytes(body[2:4], "little")
            rate = int.from_bytes(body[4:8], "little")
            bits = int.from_bytes(body[14:16], "little")
    raise ValueError("Standard input is a WAV without samples.")
