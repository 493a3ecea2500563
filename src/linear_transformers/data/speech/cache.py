"""Features of a corpus on disk, computed once and mapped into memory."""

import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from linear_transformers.data.speech.audio import read_audio
from linear_transformers.data.speech.features import at_speed, log_mel, num_frames
from linear_transformers.data.speech.labels import SpeechShape
from linear_transformers.data.speech.manifest import Utterance
from linear_transformers.files import NO_ARRAY, replacing

LEAST = 0.01  # standard deviation: what float16 rounds away, in a band that is the same always
VERSION = 1  # of the features: increase it when their computation changes


class FeatureCache:
    """Log-mel frames of utterances, one after the other, at each of several speeds.

    Stored in float16: features are below 32, so the error is below 0.01.

    Attributes:
        lengths: The numbers of frames [utterance, speed].

    Raises:
        ValueError: The files are damaged.
    """

    def __init__(self, folder: Path):
        try:
            self.frames = np.load(folder / "frames.npy", mmap_mode="r")
            self.lengths = np.load(folder / "lengths.npy")
            whole = len(self.frames) == self.lengths.sum()
            self.starts = np.cumsum(self.lengths).reshape(self.lengths.shape) - self.lengths
        except NO_ARRAY as error:
            raise ValueError(f"The cached features in {folder} are damaged ({error}).") from error
        if not whole:
            raise ValueError(f"The cached features in {folder} are not those of one corpus.")

    def __len__(self) -> int:
        return len(self.lengths)

    def get(self, utterance: int, speed: int = 0) -> np.ndarray:
        """Return the frames [t, f] of one utterance."""
        start = self.starts[utterance, speed]
        return self.frames[start : start + self.lengths[utterance, speed]]

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation [f] of each band, over all frames."""
        count = len(self.frames)
        total, squares = np.zeros((2, self.frames.shape[1]))
        for start in range(0, count, 1 << 16):
            part = self.frames[start : start + (1 << 16)].astype(np.float64)
            total, squares = total + part.sum(0), squares + np.square(part).sum(0)
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - np.square(mean), LEAST**2))
        return mean.astype(np.float32), deviation.astype(np.float32)


def cached_features(
    utterances: Sequence[Utterance],
    shape: SpeechShape,
    *,
    speeds: Sequence[float],
    root: Path,
    name: str,
    convert: bool,
) -> FeatureCache:
    """Return the features of utterances, from the cache or computed and cached.

    A cache's key is a hash of the recordings' paths, sizes and times, and of the options.

    Args:
        utterances: The utterances.
        shape: The number of mel bands, and the rate.
        speeds: See `at_speed`.
        root: The folder of all caches.
        name: The name of the split, for the progress bar.
        convert: See `read_audio`.

    Raises:
        ValueError: See `read_audio`.
    """
    folder = root / _key(utterances, shape, speeds, convert)
    if (folder / "lengths.npy").is_file():
        try:
            return FeatureCache(folder)
        except ValueError as error:
            print(f"note     {error} They are computed again.", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, utterances, shape, speeds, name, convert)
    return FeatureCache(folder)


def _write(
    folder: Path,
    utterances: Sequence[Utterance],
    shape: SpeechShape,
    speeds: Sequence[float],
    name: str,
    convert: bool,
) -> None:
    def compute(utterance: Utterance) -> list[np.ndarray]:
        waveform = read_audio(
            utterance.audio, shape.sample_rate, duration=utterance.duration, convert=convert
        )
        if num_frames(len(waveform), shape.sample_rate) == 0:
            raise ValueError(f"{utterance.audio} lasts less than 25 ms: it has not a single frame.")
        return [
            log_mel(
                at_speed(waveform, speed, shape.sample_rate),
                sample_rate=shape.sample_rate,
                num_mels=shape.num_mels,
            ).numpy().astype(np.float16)
            for speed in speeds
        ]  # fmt: skip

    lengths = np.zeros((len(utterances), len(speeds)), dtype=np.int64)
    with ThreadPoolExecutor(max_workers=2) as pool, tempfile.TemporaryFile(dir=folder) as raw:
        computed = track(  # in order, two at a time: one reads while the other computes
            pool.map(compute, utterances), f"features of {len(utterances)} {name} utterances",
            len(utterances), transient=True, disable=not Console().is_terminal,
        )  # fmt: skip
        for i, parts in enumerate(computed):
            lengths[i] = [len(part) for part in parts]
            for part in parts:
                raw.write(part.tobytes())
        raw.flush()
        frames = np.memmap(raw, np.float16, "r", shape=(int(lengths.sum()), shape.num_mels))
        # Lengths last: their file marks a complete cache.
        for kind, array in (("frames", frames), ("lengths", lengths)):
            with replacing(folder / f"{kind}.npy") as partial, partial.open("wb") as file:
                np.save(file, array)


def _key(
    utterances: Sequence[Utterance], shape: SpeechShape, speeds: Sequence[float], convert: bool
) -> str:
    about = [VERSION, shape.num_mels, shape.sample_rate, list(speeds), convert]
    digest = hashlib.sha256(json.dumps(about).encode())
    for utterance in utterances:
        try:
            state = utterance.audio.stat()
        except OSError as error:
            raise ValueError(
                f"{utterance.place}: the recording {utterance.audio} cannot be read "
                f"({error.strerror})."
            ) from error
        facts = (utterance.audio, utterance.duration, state.st_size, state.st_mtime_ns)
        digest.update("\0".join(map(str, facts)).encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
