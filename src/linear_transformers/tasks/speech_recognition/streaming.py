"""Streaming recognition: a recording piece by piece, in constant memory."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import resample

from linear_transformers.ctc import collapse
from linear_transformers.data.speech import SpeechShape, Waveform, log_mel
from linear_transformers.data.speech.audio import ratio_of
from linear_transformers.data.speech.features import num_frames, shift_samples
from linear_transformers.models import SpeechEncoder
from linear_transformers.models.dropout import check_eval

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

    def __call__(self, waveform: Waveform, *, last: bool = False) -> Float[Tensor, " converted"]:
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
