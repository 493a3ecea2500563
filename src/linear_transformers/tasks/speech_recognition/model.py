"""A trained recogniser, as one calls it: whole recordings, or sound as it arrives."""

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from linear_transformers.config.ranges import Count, NotNegative, Seconds, Size, ranged
from linear_transformers.ctc import NGram, beam_search, greedy
from linear_transformers.data.speech import SpeechShape, Waveform, log_mel, read_audio
from linear_transformers.data.speech.audio import check_rate, converted, finite
from linear_transformers.tasks.base import Trained
from linear_transformers.tasks.speech_recognition.scoring import scores_of
from linear_transformers.tasks.speech_recognition.streaming import Listener, Resampler


@dataclass(frozen=True, eq=False)
class SpeechModel(Trained):
    """A trained recogniser."""

    @property
    def shape(self) -> SpeechShape:
        """The rate and features of recordings, and what labels mean."""
        return self.task.shape

    @ranged
    def transcribe(
        self,
        audio: Path | str | np.ndarray | Tensor,
        *,
        sample_rate: Count | None = None,
        beam: Size | None = None,
        window: Seconds | None = None,
        overlap: NotNegative | None = None,
    ) -> str:
        """Return what a recording says: its phones, or its characters.

        Args:
            audio: The recording: a file, or samples [n] or [n, channels] in -1 ... 1.
            sample_rate: The rate of samples, in Hz; None is the model's.
            beam: The beam width; None is greedy decoding.
            window: See `scores_of`.
            overlap: See `scores_of`.

        Raises:
            ValueError: The recording cannot be read, has other axes, or is shorter than a frame; or
                a number is out of range.
        """
        name = str(audio) if isinstance(audio, Path | str) else "The recording"
        features = features_of(self._waveform(audio, sample_rate), self.shape, name)
        (scores,) = scores_of(self.task.model, [features], window=window, overlap=overlap)
        return self.shape.decode(recognised(scores, beam=beam))

    @ranged
    def stream(self, *, sample_rate: Count | None = None) -> "SpeechStream":
        """Return a stream that recognises sound as it arrives, at constant memory.

        Args:
            sample_rate: The rate of the samples to come, in Hz; None is the model's.

        Raises:
            ValueError: The model was trained on whole utterances and cannot stream, or there is no
                such rate.
        """
        return SpeechStream(self, self.shape.sample_rate if sample_rate is None else sample_rate)

    def _waveform(self, audio: Path | str | np.ndarray | Tensor, rate: int | None) -> Tensor:
        wanted = self.shape.sample_rate
        if isinstance(audio, Path | str):
            return read_audio(Path(audio), wanted)
        samples = _samples(audio)
        columns = samples.unsqueeze(-1) if samples.ndim == 1 else samples
        # More channels than samples are samples in place of channels: torchaudio's order.
        if columns.ndim != 2 or not columns.shape[1] or 0 < len(columns) < columns.shape[1]:
            raise ValueError(
                f"Samples {list(samples.shape)} were given; a recording is [n] or [n, channels]."
            )
        return converted(columns.numpy(), wanted if rate is None else rate, wanted, "audio")


class SpeechStream:
    """What was heard so far. Give it sound by `hear`.

    Args:
        model: A causal model.
        sample_rate: The rate of the samples to come, in Hz.

    Raises:
        ValueError: The model is not causal, or there is no such rate.

    Attributes:
        text: The phones or characters so far.
    """

    def __init__(self, model: SpeechModel, sample_rate: int):
        self.shape = model.shape
        self.text = ""
        self._ended = False
        self._listener = Listener(model.task.model, model.shape)
        check_rate(sample_rate, "audio")
        self._resampler = Resampler(sample_rate, model.shape.sample_rate)

    def hear(self, samples: np.ndarray | Tensor, *, last: bool = False) -> str:
        """Return the phones or characters that further samples [n] complete.

        Args:
            samples: The samples, in -1 ... 1.
            last: Whether the recording ends here.

        Raises:
            ValueError: They are not one channel of finite numbers, or the recording has ended.
        """
        if self._ended:
            raise ValueError("The recording has ended: last=True was given. Begin a new stream.")
        waveform = _samples(samples)
        if waveform.ndim != 1:
            raise ValueError(
                f"Samples {list(waveform.shape)} were given; a stream hears one channel, [n]."
            )
        finite(waveform.numpy(), "audio")
        self._ended = last
        labels = self._listener.hear(self._resampler(waveform, last=last), last=last)
        heard = self.shape.decode(labels)
        separator = " " if heard and self.text and self.shape.kind == "phones" else ""
        self.text += separator + heard
        return heard

    def fork(self) -> "SpeechStream":
        """Return a stream that goes on from here on its own. States are values."""
        fork = copy.copy(self)
        fork._listener, fork._resampler = copy.copy(self._listener), copy.copy(self._resampler)
        return fork


def _samples(given: np.ndarray | Tensor) -> Tensor:
    """Return samples in float32.

    Raises:
        ValueError: They are integers, whose range nobody has said.
    """
    samples = torch.as_tensor(given).detach()
    if not samples.is_floating_point():
        raise ValueError(
            f"Samples of {samples.dtype} were given; they are numbers from -1 to 1. Divide those "
            "of 16 bits by 32768."
        )
    return samples.float().cpu()


def features_of(waveform: Waveform, shape: SpeechShape, name: str) -> Float[Tensor, "t f"]:
    """Return the features [t, f] of a recording.

    Args:
        waveform: The samples, at the shape's rate.
        shape: The shape of a model's recordings.
        name: What the recording is called in a message.

    Raises:
        ValueError: The recording is shorter than a frame.
    """
    features = log_mel(waveform, sample_rate=shape.sample_rate, num_mels=shape.num_mels)
    if len(features) == 0:
        raise ValueError(f"{name} lasts less than 25 ms: it has not a single frame.")
    return features


def recognised(
    scores: Tensor,
    *,
    beam: int | None = None,
    language_model: NGram | None = None,
    weight: float = 0.5,
    bonus: float = 0.0,
) -> list[int]:
    """Return the labels of a recording.

    Args:
        scores: The scores [t, p].
        beam: The beam width; None is greedy decoding.
        language_model: See `beam_search`.
        weight: See `beam_search`.
        bonus: See `beam_search`.
    """
    if beam is None:
        return greedy(scores[None], torch.tensor([len(scores)]))[0]
    return beam_search(
        scores.cpu(), beam=beam, language_model=language_model, weight=weight, bonus=bonus
    )
