"""Read recordings as waveforms in [-1, 1], of one channel, at a given rate."""

import io
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import soundfile
import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import resample

from linear_transformers.config.messages import counted
from linear_transformers.data.base import files_below

Waveform = Float[Tensor, "samples"]
SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".sph", ".wv1", ".wv2")
# The sizes in the header of a WAV that can be believed. Programs that write to a pipe do not know
# the size yet, and put 0, about 2 GiB (sox, arecord), or 0xFFFFFFFF (ffmpeg).
KNOWN_SIZES = range(1, 0x7FFF0000)
UNKNOWN_LENGTH = 2**62  # frames; libsndfile's sign of it is about twice as many
RATES = range(1000, 768_001)  # Hz
MOST_STEPS = 1000  # the largest denominator of the ratio of two rates
LOUDEST = 2.0**32  # a sample is larger than integers that nobody scaled
TOLERANCE = 0.05  # seconds, by which a recording may differ from its manifest, which rounds


def read_audio(
    path: Path, sample_rate: int, *, duration: float | None = None, convert: bool = True
) -> Waveform:
    """Read a whole recording, as samples in [-1, 1].

    Args:
        path: The file, of any format that libsndfile reads: WAV, FLAC, Ogg, Opus, SPHERE, ...
        sample_rate: The rate of the result, in Hz.
        duration: The expected duration, in seconds; None skips the check.
        convert: Whether to resample other rates and average channels; otherwise they are refused.

    Raises:
        ValueError: The file is missing, empty, not audio, truncated, of another duration, of a
            rate or several channels that are refused, or holds NaN or infinity.
    """
    if not path.is_file():
        raise ValueError(f"The recording {path} does not exist.")
    try:
        with soundfile.SoundFile(_decompressed(path)) as file:
            check_length(file, str(path))
            claimed, rate = file.frames, file.samplerate
            samples = file.read(dtype="float32", always_2d=True)
    except UnicodeEncodeError as error:
        raise ValueError(f"The recording {str(path)!a} has no name in UTF-8.") from error
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: it has no header
        raise ValueError(
            f"{path} is not a recording that can be read ({reason(error)})."
        ) from error
    if len(samples) == 0:
        raise ValueError(f"{path} holds no audio: it has no samples.")
    check_whole(path, len(samples), claimed)
    seconds = len(samples) / rate
    if duration is not None and abs(seconds - duration) > TOLERANCE:
        raise ValueError(
            f"{path} lasts {seconds:.2f} s, and {duration:.2f} s were announced: it is truncated, "
            "or another recording."
        )
    return converted(samples, rate, sample_rate, str(path), convert=convert)


def reason(error: Exception) -> str:
    """Return what is wrong with a recording in one line, without the name that libsndfile gives."""
    if isinstance(error, soundfile.LibsndfileError):
        return error.error_string
    return str(error).splitlines()[-1]


def check_length(file: soundfile.SoundFile, name: str) -> None:
    """Refuse a file that does not say how long it is.

    Raises:
        ValueError: It does not: a FLAC that was written to a pipe, say.
    """
    if file.frames >= UNKNOWN_LENGTH:
        raise ValueError(
            f"{name} does not say how long it is: it was written to a pipe. Write it to a file."
        )


def _decompressed(path: Path) -> Path | io.BytesIO:
    """Return the path, or a WAV made by `sph2pipe` of a SPHERE file compressed by `shorten`.

    The LDC's recordings are such files, and libsndfile cannot read them.

    Raises:
        ValueError: `sph2pipe` is needed, and is missing or fails.
    """
    with path.open("rb") as file:
        head = file.read(1024)
    if not (head.startswith(b"NIST_1A") and b"shorten" in head):
        return path
    if shutil.which("sph2pipe") is None:
        raise ValueError(
            f"{path} is compressed by shorten. Put the LDC's sph2pipe on the PATH, or convert it: "
            "sph2pipe -f wav IN OUT."
        )
    done = subprocess.run(["sph2pipe", "-f", "wav", str(path)], capture_output=True)
    if done.returncode != 0:
        raise ValueError(f"sph2pipe cannot read {path}: {done.stderr.decode().strip()}")
    return io.BytesIO(done.stdout)


def converted(
    samples: np.ndarray, rate: int, sample_rate: int, name: str, *, convert: bool = True
) -> Waveform:
    """Return samples [n, channels] as one channel at `sample_rate`.

    Raises:
        ValueError: A sample is NaN or infinite, or a conversion is needed and not allowed.
    """
    channels = finite(samples, name).shape[1]
    check_rate(rate, name)
    if not convert and (rate != sample_rate or channels > 1):
        raise ValueError(
            f"{name} has {counted(channels, 'channel')} at {rate} Hz; one at {sample_rate} Hz is "
            "wanted. Convert it, or use data.convert=true."
        )
    waveform = torch.from_numpy(samples.mean(axis=1))
    if rate == sample_rate or len(waveform) == 0:  # of which torchaudio makes an error
        return waveform
    return resample(waveform, *ratio_of(rate, sample_rate))


def ratio_of(rate: int, wanted: int) -> tuple[int, int]:
    """Return the ratio of two rates in small numbers, rounded where it has none.

    The resampling filter has as many entries as their product: gigabytes at 16,001 to 16,000.
    """
    near = Fraction(min(rate, wanted), max(rate, wanted)).limit_denominator(MOST_STEPS)
    less, more = near.numerator, near.denominator
    return (less, more) if rate < wanted else (more, less)


def check_rate(rate: int, name: str) -> None:
    """Refuse a sampling rate that no recording has.

    Args:
        rate: The rate, in Hz.
        name: What claims it.

    Raises:
        ValueError: It is not in `RATES`.
    """
    if rate not in RATES:
        raise ValueError(
            f"{name} claims {rate} samples a second; recordings have {RATES.start} to "
            f"{RATES.stop - 1}. Its header is damaged, or its rate another one."
        )


def finite(samples: np.ndarray, name: str) -> np.ndarray:
    """Return the samples unchanged.

    Raises:
        ValueError: A sample is NaN or infinite, or so large that its power is.
    """
    if not np.isfinite(samples).all():
        count = int((~np.isfinite(samples)).sum())
        which = "is no finite number" if count == 1 else "are no finite numbers"
        raise ValueError(f"{name} holds {counted(count, 'sample')} that {which}.")
    if (loudest := np.abs(samples).max(initial=0.0)) > LOUDEST:
        raise ValueError(f"{name} holds samples of up to {loudest:.3g}. They are from -1 to 1.")
    return samples


def check_whole(path: Path, read: int, claimed: int) -> None:
    """Refuse a file that is truncated: see `check_whole_wav`, too."""
    if read < claimed:
        raise ValueError(f"{path} is truncated: {read} of {claimed} samples could be read.")
    with path.open("rb") as file:
        check_whole_wav(file, str(path))


def check_whole_wav(file: io.BufferedIOBase, name: str) -> None:
    """Refuse a truncated WAV, which libsndfile reads without an error: it ignores the size in the
    header.

    Raises:
        ValueError: It is one.
    """
    found = samples_of_wav(file)
    if found is None:
        return
    start, size = found
    left = file.seek(0, io.SEEK_END) - start
    if size in KNOWN_SIZES and left < size:
        raise ValueError(
            f"{name} is truncated: its header promises {size} bytes of samples, {left} are there."
        )


def samples_of_wav(file: io.BufferedIOBase) -> tuple[int, int] | None:
    """Return where the samples of a WAV begin, and the number of bytes that its header promises;
    None of another file."""
    riff = file.read(12).startswith(b"RIFF")
    while riff and len(header := file.read(8)) == 8:
        size = int.from_bytes(header[4:], "little")
        if header[:4] == b"data":
            return file.tell(), size
        file.seek(size + size % 2, io.SEEK_CUR)
    return None


def recordings_in(path: Path) -> list[Path]:
    """Return the audio files of a path: itself, or all below a folder.

    Raises:
        ValueError: There is none.
    """
    if path.is_dir():
        found = sorted(p for p in files_below(path) if p.suffix.lower() in SUFFIXES)
        if not found:
            raise ValueError(f"{path} holds no recordings: no file ends in {', '.join(SUFFIXES)}.")
        return found
    if not path.is_file():
        raise ValueError(f"The recording {path} does not exist.")
    return [path]
