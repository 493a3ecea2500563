"""Features of a corpus, computed once and mapped into memory."""

import itertools
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from linear_transformers.data.cache import cached, state_of
from linear_transformers.data.speech.audio import read_audio
from linear_transformers.data.speech.features import at_speed, log_mel, num_frames
from linear_transformers.data.speech.labels import SpeechShape
from linear_transformers.data.speech.manifest import Utterance

LEAST = 0.01  # standard deviation: what float16 rounds away, in a band that is the same always
VERSION = 2  # of the features: increase it when their computation changes


class Features:
    """Log-mel frames of utterances, one after the other, at each of several speeds.

    Stored in float16: features are below 32, so the error is below 0.01.

    Attributes:
        frames: The frames of all [frame, band].
        lengths: The numbers of frames [utterance, speed].
    """

    def __init__(self, frames: np.ndarray, lengths: np.ndarray):
        self.frames = frames
        self.lengths = lengths
        self.starts = np.cumsum(lengths).reshape(lengths.shape) - lengths

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
) -> Features:
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

    def frames_of(utterance: Utterance) -> list[np.ndarray]:
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

    def arrays() -> Generator[list[np.ndarray]]:
        with ThreadPoolExecutor(max_workers=2) as pool:
            for parts in track(  # in order, two at a time: one reads while the other computes
                pool.map(frames_of, utterances), f"features of {len(utterances)} {name} utterances",
                len(utterances), transient=True, disable=not Console().is_terminal,
            ):  # fmt: skip
                yield from ([part] for part in parts)

    options = [VERSION, shape.num_mels, shape.sample_rate, list(speeds), convert]
    frames, lengths = cached(
        root,
        "features",
        itertools.chain([options], map(_facts, utterances)),
        arrays,
        np.empty((0, shape.num_mels), np.float16),
    )
    return Features(frames, lengths.reshape(-1, len(speeds)))


def _facts(utterance: Utterance) -> list[object]:
    """Return what the features of an utterance depend on.

    Raises:
        ValueError: The recording cannot be read.
    """
    try:
        return [utterance.duration, *state_of(utterance.audio)]
    except OSError as error:
        raise ValueError(
            f"{utterance.place}: the recording {utterance.audio} cannot be read ({error.strerror})."
        ) from error
