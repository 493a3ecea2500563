"""Log-mel filterbanks: the input of speech models."""

import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.compliance.kaldi import fbank
from torchaudio.functional import resample

from linear_transformers.data.speech.audio import Waveform, ratio_of

WINDOW_MS, SHIFT_MS = 25, 10  # Kaldi's defaults
BLOCK = 6000  # frames computed at once: each copies its samples
Faster = Float[Tensor, "faster"]


def log_mel(waveform: Waveform, *, sample_rate: int, num_mels: int) -> Float[Tensor, "t f"]:
    """Return Kaldi's log-mel energies without dither: a frame of 25 ms every 10 ms.

    A frame is a function of its own samples only, so a stream has the features of the whole.
    Samples that do not fill a frame are left out.
    """
    count, shift = num_frames(len(waveform), sample_rate), shift_samples(sample_rate)
    blocks = [
        fbank(
            # In the range of 16-bit integers, as Kaldi reads them.
            waveform[first * shift :][: BLOCK * shift + window_samples(sample_rate) - shift][None]
            * 2**15,
            sample_frequency=sample_rate,
            frame_length=WINDOW_MS,
            frame_shift=SHIFT_MS,
            num_mel_bins=num_mels,
            dither=0.0,
        )
        for first in range(0, count, BLOCK)
    ]
    return torch.cat(blocks) if blocks else torch.zeros(0, num_mels)


def window_samples(sample_rate: int) -> int:
    """Return the number of samples in a frame."""
    return sample_rate * WINDOW_MS // 1000


def shift_samples(sample_rate: int) -> int:
    """Return the number of samples from one frame to the next."""
    return sample_rate * SHIFT_MS // 1000


def num_frames(num_samples: int, sample_rate: int) -> int:
    """Return the number of frames of a recording."""
    left = num_samples - window_samples(sample_rate)
    return 0 if left < 0 else left // shift_samples(sample_rate) + 1


def at_speed(waveform: Waveform, speed: float, sample_rate: int) -> Faster:
    """Return a waveform played faster or slower: speed perturbation (Ko et al., 2015)."""
    if speed == 1.0:
        return waveform
    return resample(waveform, *ratio_of(round(speed * sample_rate), sample_rate))
