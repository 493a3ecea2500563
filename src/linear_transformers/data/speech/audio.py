"""One way to read a recording: as numbers in [-1, 1], one channel, at the rate that is wanted."""

import io
import shutil
import subprocess
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
# Of a WAV that is still being written.
UNKNOWN_SIZES = (0, 0xFFFFFFFF)
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
        with soundfile.SoundFile(_decompressed(path)) as file:
            claimed, rate = file.frames, file.samplerate
            samples = file.read(dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        raise ValueError(
            f"{path} is not a recording that can be read ({str(error).splitlines()[-1]})."
        ) from error
    if len(samples) == 0:
        raise ValueError(f"{path} holds no audio: it has no samples.")
    fault = truncated(path, len(samples), claimed)
    if fault:
        raise ValueError(fault)
    seconds = len(samples) / rate
    if duration is not None and abs(seconds - duration) > TOLERANCE:
        raise ValueError(
            f"{path} lasts {seconds:.2f} s, and {duration:.2f} s were announced: it is truncated, "
            "or another recording."
        )
    return converted(samples, rate, sample_rate, str(path), convert=convert)


def _decompressed(path: Path) -> Path | io.BytesIO:
    """The file itself, or what `sph2pipe` makes of one that is compressed by `shorten`, as the
    LDC's SPHERE files are and libsndfile cannot read.

    Raises:
        ValueError: It is, and there is no such program, or the program fails.
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


def truncated(path: Path, read: int, claimed: int) -> str:
    """Why a file cannot be whole, or nothing. libsndfile counts the frames of a truncated WAV from
    the bytes that are left, and says no word of what its header promises."""
    if read < claimed:
        return f"{path} is truncated: {read} of {claimed} samples could be read."
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
            return None if size in UNKNOWN_SIZES else (file.tell(), size)
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
