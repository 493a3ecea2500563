"""Standard input, read at once or as a stream: both refuse the same recordings."""

import io
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from linear_transformers.data.speech.incoming import from_standard_input, pieces

RATE = 16000
SAMPLES = np.random.default_rng(0).integers(-3000, 3000, RATE, dtype=np.int16)


def wav(*, size: int = 2 * len(SAMPLES), channels: int = 1, rate: int = RATE) -> bytes:
    """Return a WAV of `SAMPLES`, whatever its header says."""
    form = struct.pack("<HHIIHH", 1, channels, rate, 2 * rate, 2 * channels, 16)
    header = struct.pack("<4sI8sI16s4sI", b"RIFF", 0, b"WAVEfmt ", 16, form, b"data", size)
    return header + SAMPLES.tobytes()


@pytest.fixture(params=["at once", "in pieces"])
def heard(request, monkeypatch):
    """Return the samples that are heard of the bytes of a pipe."""

    def hear(data: bytes) -> np.ndarray:
        pipe = io.BufferedReader(io.BytesIO(data))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
        if request.param == "at once":
            return from_standard_input(RATE).numpy()
        return np.concatenate([piece for piece, _ in pieces("-", 0.1, RATE)])[:, 0]

    return hear


def test_a_truncated_wav_on_a_pipe_is_refused(heard, raises_one_line):
    np.testing.assert_array_equal(heard(wav()), SAMPLES / np.float32(2**15))
    with raises_one_line("Standard input", "truncated"):
        heard(wav()[: len(wav()) // 2])


# As Python, sox, arecord (two) and ffmpeg write it to a pipe.
@pytest.mark.parametrize("size", [0, 0x7FFFF000, 0x7FFFFF00, 0x80000000, 0xFFFFFFFF])
def test_a_wav_that_does_not_know_its_size_is_heard_to_its_end(heard, size):
    np.testing.assert_array_equal(heard(wav(size=size)), SAMPLES / np.float32(2**15))


@pytest.mark.parametrize("form", ["AIFF", "NIST", "AU", "CAF", "RF64"])
def test_another_format_is_not_heard_as_noise(heard, request, form, raises_one_line):
    file = io.BytesIO()
    soundfile.write(file, SAMPLES, RATE, format=form, subtype="PCM_16")
    if "at once" in request.node.name:
        np.testing.assert_array_equal(heard(file.getvalue()), SAMPLES / np.float32(2**15))
    else:
        with raises_one_line("Standard input", "sox"):
            heard(file.getvalue())


def mp3(rate: int) -> bytes:
    """Return an MP3 without a tag."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).standard_normal(2 * rate)
    soundfile.write(file, 0.1 * noise, rate, format="MP3")
    return file.getvalue()


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
def test_an_mp3_without_a_tag_is_not_heard_as_noise(heard, request, rate, raises_one_line):
    if "at once" in request.node.name:
        assert len(heard(mp3(rate))) == pytest.approx(2 * RATE, rel=0.1)
    else:
        with raises_one_line("Standard input", "sox"):
            heard(mp3(rate))


@pytest.mark.parametrize("start", [b"\x00\x00\x00\x20ftypM4A ", b"\x1aE\xdf\xa3\x9fB\x86\x81"])
def test_what_nobody_here_can_decode_is_refused(heard, start, raises_one_line):
    with raises_one_line("Standard input"):
        heard(start + SAMPLES.tobytes())


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100, 721, 722, RATE])
@pytest.mark.parametrize("first", [5, 0xF3FF - 2**16])
def test_bare_samples_are_heard_from_the_first_to_the_last(heard, first, size):
    """Some begin with what might be a header of MP3."""
    samples = np.concatenate([np.array([first, 0x4444], dtype=np.int16), SAMPLES])[:size]
    np.testing.assert_array_equal(heard(samples.tobytes()), samples / np.float32(2**15))


@pytest.mark.parametrize("missing", ["channels", "rate"])
def test_a_wav_without_a_rate_or_channels_is_refused(heard, missing, raises_one_line):
    with raises_one_line("Standard input is"):
        heard(wav(**{missing: 0}))


def test_a_piece_may_be_longer_than_memory_holds(monkeypatch):
    """Nothing is kept ready for what has not arrived."""
    pipe = io.BufferedReader(io.BytesIO(wav(size=0xFFFFFFFF)))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
    whole = np.concatenate([piece for piece, _ in pieces("-", 1e9, RATE)])[:, 0]
    np.testing.assert_array_equal(whole, SAMPLES / np.float32(2**15))
