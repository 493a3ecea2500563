"""Recordings as they arrive: a file or standard input in pieces, and standard input as a whole."""

import io
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

from linear_transformers.data.speech.audio import (
    KNOWN_SIZES,
    RATES,
    Waveform,
    check_length,
    check_whole,
    check_whole_wav,
    converted,
    finite,
    reason,
    samples_of_wav,
)

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
MOST_BYTES = 2**20  # read at once: memory for as many is set aside


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
            check_whole(Path(audio), file.tell(), file.frames)
    except (soundfile.SoundFileError, TypeError) as error:
        raise ValueError(
            f"{audio} is not a recording that can be read ({reason(error)})."
        ) from error


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
        place = samples_of_wav(io.BytesIO(data))
        if place is not None and place[1] == 0:  # not known; libsndfile takes it as it is
            data = data[: place[0] - 4] + b"\xff" * 4 + data[place[0] :]
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                check_length(file, "Standard input")
                samples, rate = file.read(dtype="float32", always_2d=True), file.samplerate
        except soundfile.SoundFileError as error:
            raise ValueError(
                f"Standard input is no recording that can be read ({reason(error)})."
            ) from error
        check_whole_wav(io.BytesIO(data), "Standard input")
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
    size = min(width * max(1, round(seconds * rate)), MOST_BYTES)
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
