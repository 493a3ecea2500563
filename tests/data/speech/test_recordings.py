"""Reading audio: what is whole is read the same in every form, what is not is refused."""

import numpy as np
import pytest
import soundfile
import torch
from torchaudio.functional import resample

from linear_transformers.data.speech import log_mel, read_audio, recordings_in
from linear_transformers.data.speech.audio import ratio_of
from linear_transformers.data.speech.features import at_speed, num_frames, shift_samples
from linear_transformers.data.speech.incoming import pieces

RATE = 16000


def tone(seconds: float = 0.5, rate: int = RATE) -> np.ndarray:
    random = np.random.default_rng(0)
    time = np.arange(round(seconds * rate)) / rate
    wave = 0.4 * np.sin(2 * np.pi * 440 * time) + 0.01 * random.standard_normal(len(time))
    return wave.astype(np.float32)


@pytest.mark.parametrize(
    ("suffix", "subtype", "error"),
    [
        ("wav", "PCM_16", 1e-4),
        ("flac", "PCM_16", 1e-4),
        ("wav", "FLOAT", 0),
        ("ogg", "VORBIS", 0.05),
    ],
)
def test_every_format_is_read(tmp_path, suffix, subtype, error):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, tone(), RATE, subtype=subtype)
    read = read_audio(path, RATE, duration=0.5)
    assert read.dtype == torch.float32
    assert (read - torch.from_numpy(tone())).abs().max() <= error


def test_opus_and_sphere_are_read(tmp_path):
    soundfile.write(tmp_path / "a.opus", tone(), RATE, format="OGG", subtype="OPUS")
    soundfile.write(tmp_path / "a.wv1", tone(), RATE, format="NIST", subtype="PCM_16")
    assert len(read_audio(tmp_path / "a.opus", RATE)) == RATE // 2
    sphere = read_audio(tmp_path / "a.wv1", RATE)
    torch.testing.assert_close(sphere, torch.from_numpy(tone()), atol=1e-4, rtol=0)


def test_other_rates_and_channels_are_converted_or_refused(tmp_path, raises_one_line):
    path = tmp_path / "a.wav"
    left, right = tone(rate=22050), np.zeros(11025, np.float32)
    soundfile.write(path, np.stack([left, right], axis=1), 22050, subtype="FLOAT")
    expected = resample(torch.from_numpy(left / 2), 22050, RATE)
    torch.testing.assert_close(read_audio(path, RATE), expected)
    with raises_one_line("2 channels", "22050 Hz", "16000 Hz", "data.convert=true"):
        read_audio(path, RATE, convert=False)
    soundfile.write(path, tone(), 8000)
    with raises_one_line("1 channel at 8000 Hz"):
        read_audio(path, RATE, convert=False)


@pytest.mark.parametrize("rate", [15999, 16001, 44101])
def test_a_strange_rate_is_converted_in_little_memory(tmp_path, rate):
    """A filter of 16,001 phases of 16,000 would fill gigabytes."""
    soundfile.write(tmp_path / "a.wav", tone(rate=rate), rate, subtype="FLOAT")
    read = read_audio(tmp_path / "a.wav", RATE)
    assert abs(len(read) - RATE // 2) <= 1
    assert (read[100:-100] - torch.from_numpy(tone())[: len(read)][100:-100]).abs().mean() < 0.02


@pytest.mark.parametrize(("rate", "ratio"), [(44100, (441, 160)), (8000, (1, 2)), (16000, (1, 1))])
def test_a_usual_rate_is_converted_exactly(rate, ratio):
    assert ratio_of(rate, RATE) == ratio


def test_a_recording_that_does_not_say_how_long_it_is_is_refused(tmp_path, raises_one_line):
    """Of a FLAC that was written to a pipe: 36 bits at byte 21 are zero."""
    soundfile.write(tmp_path / "a.flac", tone(), RATE)
    data = bytearray((tmp_path / "a.flac").read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    (tmp_path / "a.flac").write_bytes(data)
    with raises_one_line("a.flac does not say how long it is", "pipe"):
        read_audio(tmp_path / "a.flac", RATE)
    with raises_one_line("a.flac does not say how long it is", "pipe"):
        list(pieces(str(tmp_path / "a.flac"), 0.1, RATE))


def test_a_file_without_a_header_is_refused(tmp_path, raises_one_line):
    (tmp_path / "a.raw").write_bytes(bytes(100))
    with raises_one_line("a.raw is not a recording that can be read"):
        read_audio(tmp_path / "a.raw", RATE)


def write(path, samples=None) -> bytes:
    soundfile.write(path, tone() if samples is None else samples, RATE, subtype="FLOAT")
    return path.read_bytes()


def test_broken_recordings_are_refused_by_name(tmp_path, raises_one_line):
    path = tmp_path / "a.wav"
    with raises_one_line("a.wav", "does not exist"):
        read_audio(path, RATE)
    path.write_bytes(b"")
    with raises_one_line("a.wav", "not a recording"):
        read_audio(path, RATE)
    path.write_bytes(b"<html>not found</html>")
    for read in (lambda: read_audio(path, RATE), lambda: list(pieces(str(path), 0.1, RATE))):
        with raises_one_line("a.wav is not a recording that can be read (Format not recognised"):
            read()
    write(path, np.zeros(0, np.float32))
    with raises_one_line("a.wav", "no audio"):
        read_audio(path, RATE)
    whole = write(path)
    path.write_bytes(whole[: len(whole) // 2])  # libsndfile alone would read half, silently
    with raises_one_line("a.wav", "truncated"):
        read_audio(path, RATE)
    write(path, np.where(np.arange(8000) % 100 == 7, np.nan, tone()).astype(np.float32))
    with raises_one_line("a.wav", "80 samples", "no finite numbers"):
        read_audio(path, RATE)
    write(path, np.where(np.arange(8000) == 7, np.nan, tone()).astype(np.float32))
    with raises_one_line("a.wav holds 1 sample that is no finite number."):
        read_audio(path, RATE)
    write(path, (1e16 * tone()).astype(np.float32))  # whose power overflows
    with raises_one_line("a.wav", "e+15", "from -1 to 1"):
        read_audio(path, RATE)
    write(path)
    with raises_one_line("a.wav", "lasts 0.50 s", "0.90 s were announced"):
        read_audio(path, RATE, duration=0.9)


def test_a_truncated_flac_is_refused(tmp_path, raises_one_line):
    path = tmp_path / "a.flac"
    soundfile.write(path, tone(2.0), RATE)
    path.write_bytes(path.read_bytes()[:-4000])
    with raises_one_line("a.flac"):
        read_audio(path, RATE)


def test_a_folder_means_all_recordings_below_it(tmp_path, raises_one_line):
    (tmp_path / "deep").mkdir()
    with raises_one_line("holds no recordings"):
        recordings_in(tmp_path)
    for name in ("b.wav", "deep/a.FLAC", "notes.txt"):
        (tmp_path / name).touch()
    assert recordings_in(tmp_path) == [tmp_path / "b.wav", tmp_path / "deep/a.FLAC"]


def test_frames_are_a_function_of_their_own_samples():
    """Features of a stream, cut anywhere, are those of the whole."""
    wave = torch.from_numpy(tone())
    whole = log_mel(wave, sample_rate=RATE, num_mels=40)
    assert whole.shape == (num_frames(len(wave), RATE), 40)
    for cut in (1, 7, 30):
        later = log_mel(wave[cut * shift_samples(RATE) :], sample_rate=RATE, num_mels=40)
        torch.testing.assert_close(later, whole[cut:])
    assert log_mel(wave[:399], sample_rate=RATE, num_mels=40).shape == (0, 40)


def test_louder_by_two_is_higher_by_its_logarithm():
    wave = torch.from_numpy(tone())
    soft, loud = (log_mel(gain * wave, sample_rate=RATE, num_mels=40) for gain in (0.5, 1.0))
    torch.testing.assert_close(loud - soft, torch.full_like(soft, np.log(4)), atol=1e-3, rtol=0)


def test_faster_is_shorter_and_higher():
    wave = torch.from_numpy(tone(2.0))
    fast = at_speed(wave, 1.1, RATE)
    assert len(fast) == pytest.approx(len(wave) / 1.1, abs=1)
    peak = torch.fft.rfft(fast).abs().argmax().item() * RATE / len(fast)
    assert peak == pytest.approx(440 * 1.1, abs=2)
    assert at_speed(wave, 1.0, RATE) is wave
