"""One way to read a recording: as numbers in [-1, 1], one channel, at the rate that is wanted."""

from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import resample

Waveform = Float[Tensor, "samples"]
SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".sph", ".wv1", ".wv2")
# A file may be a few milliseconds off what its manifest says: writers round.
TOLERANCE = 0.05


def read_audio(
    path: Path, sample_rate: int, *, duration: float | None = None, convert: bool = True
) -> Waveform:
    """Read a whole recording.

    Args:
        path: Any file that libsndfile reads: WAV, FLAC, Ogg, Opus, SPHERE, ...
        sample_rate: Hz, of the result.
        duration: Seconds that there should be; None does not look.
        convert: Resample other rates and average channels; otherwise they are refused.

    Raises:
        ValueError: The file is missing, empty, no audio, shorter than it claims, of another
            rate or of several channels, or holds numbers that are none.
    """
    if not path.is_file():
        raise ValueError(f"The recording {path} does not exist.")
    try:
        with soundfile.SoundFile(path) as file:
            claimed, rate = file.frames, file.samplerate
            samples = file.read(dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        raise ValueError(
            f"{path} is not a recording that can be read ({str(error).splitlines()[-1]})."
        ) from error
    if len(samples) == 0:
        raise ValueError(f"{path} holds no audio: it has no samples.")
    truncated = _truncated(path, samples, claimed)
    if truncated:
        raise ValueError(truncated)
    seconds = len(samples) / rate
    if duration is not None and abs(seconds - duration) > TOLERANCE:
        raise ValueError(
            f"{path} lasts {seconds:.2f} s, and {duration:.2f} s were announced: it is truncated, "
            "or another recording."
        )
    return converted(samples, rate, sample_rate, str(path), convert=convert)


def converted(
    samples: np.ndarray, rate: int, sample_rate: int, name: str, *, convert: bool = True
) -> Waveform:
    """Samples [n, channels] as one channel at another rate.

    Raises:
        ValueError: A sample is no finite number, or something is to be converted and must not.
    """
    channels = checked(samples, name).shape[1]
    if not convert and (rate != sample_rate or channels > 1):
        raise ValueError(
            f"{name} has {channels} channels at {rate} Hz; one at {sample_rate} Hz is wanted. "
            "Convert it, or let it be converted with data.convert=true."
        )
    waveform = torch.from_numpy(samples.mean(axis=1))
    return waveform if rate == sample_rate else resample(waveform, rate, sample_rate)


def checked(samples: np.ndarray, name: str) -> np.ndarray:
    """The samples as they are.

    Raises:
        ValueError: Some are no finite numbers.
    """
    if not np.isfinite(samples).all():
        count = int((~np.isfinite(samples)).sum())
        raise ValueError(f"{name} holds {count} samples that are no finite numbers.")
    return samples


def _truncated(path: Path, samples: np.ndarray, claimed: int) -> str:
    """Why a file cannot be whole, or nothing. libsndfile counts the frames of a truncated WAV from
    the bytes that are left, and says no word of what its header promises."""
    if len(samples) < claimed:
        return f"{path} is truncated: {len(samples)} of {claimed} samples could be read."
    with path.open("rb") as file:
        head = file.read(4)
        if head != b"RIFF":
            return ""
        promised = _riff_data_bytes(file)
    left = path.stat().st_size
    if promised is not None and promised[0] + promised[1] > left:
        return (
            f"{path} is truncated: its header promises {promised[1]} bytes of samples, and "
            f"{left - promised[0]} are there."
        )
    return ""


def _riff_data_bytes(file: BinaryIO) -> tuple[int, int] | None:
    """Where the samples of a WAV begin, and how many bytes its header says they are; None where
    it does not say, as streams do not."""
    file.seek(12)
    while len(header := file.read(8)) == 8:
        size = int.from_bytes(header[4:], "little")
        if header[:4] == b"data":
            return None if size in (0, 0xFFFFFFFF) else (file.tell(), size)
        file.seek(size + size % 2, 1)
    return None


def recordings_in(path: Path) -> list[Path]:
    """The audio files that a path means: itself, or all below a folder.

    Raises:
        ValueError: There is none.
    """
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
        if not found:
            raise ValueError(f"{path} holds no recordings: no file ends in {', '.join(SUFFIXES)}.")
        return found
    if not path.is_file():
        raise ValueError(f"The recording {path} does not exist.")
    return [path]
