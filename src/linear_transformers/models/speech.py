"""The speech model of Katharopoulos et al. (2020), section 4.3: from log-mel features to the CTC
scores of labels and the blank, frame by frame. With a causal stack it can stream.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchaudio.transforms import SpecAugment

from linear_transformers.config.ranges import CountOrZero, Masks, Size, ranged
from linear_transformers.models.acoustic import Convolution, Normalization, subsampling_of
from linear_transformers.models.bilstm import BiLstm
from linear_transformers.models.transformer import Head, StackState, Transformer
from linear_transformers.ops.lengths import check_lengths
from linear_transformers.shapes import Features, Lengths, PerBand

Scores = Float[Tensor, "b s p"]
EXAMPLE_FRAMES = 400  # four seconds

Frames = TypeVar("Frames", int, Tensor)


class StreamState(NamedTuple):
    """The state of a stream: the last frames each convolution still needs, and the stack's."""

    frames: tuple[Tensor, ...]
    stack: StackState


class SpeechEncoder(nn.Module):
    """Normalisation, convolutional subsampling, a stack, and a score for each label.

    Args:
        stack: The `Transformer` or `BiLstm`.
        num_mels: The number of mel bands, f.
        num_labels: The number of labels without the blank, which is label 0: p = 1 + num_labels.
        subsampling: The number of frames that become one: 1, 2 or 4.
        width: The width of each convolution, in frames.
        lookahead: The number of frames, after subsampling, that a causal stack's output waits for.
        normalization: The kind of normalisation; see `Normalization`.
        time_masks: The number of time masks in training (SpecAugment, Park et al., 2019).
        time_mask_frames: The greatest length of a time mask, in frames.
        mel_masks: The number of frequency masks in training.
        mel_mask_bands: The greatest width of a frequency mask, in mel bands.

    Raises:
        ValueError: A choice is unknown, or does not go with a stack that is, or is not, causal.
    """

    convolutions: Sequence[Convolution]
    longest: Tensor

    @ranged
    def __init__(
        self,
        stack: Transformer | BiLstm,
        num_mels: Size,
        num_labels: Size,
        *,
        subsampling: Size = 4,
        width: Size = 3,
        lookahead: CountOrZero = 0,
        normalization: str = "corpus",
        time_masks: Masks = 0,
        time_mask_frames: CountOrZero = 0,
        mel_masks: Masks = 0,
        mel_mask_bands: CountOrZero = 0,
    ):
        super().__init__()
        if lookahead and not stack.causal:
            raise ValueError(
                f"lookahead={lookahead} was asked for: it is the number of frames that a causal "
                "encoder waits for. Use model.causal=true, or lookahead=0."
            )
        if stack.causal and normalization == "utterance":
            raise ValueError(
                "normalization=utterance needs whole utterances; a causal encoder does not "
                "wait for them. Use normalization=corpus."
            )
        if isinstance(stack, Transformer) and stack.causal and not stack.exactly_causal:
            raise ValueError(
                f"{stack.mixer_name} lets later frames, and padding, change the outputs of earlier "
                "ones, so it cannot stream. Use model=lsh4, or model.causal=false."
            )
        if mel_mask_bands > num_mels:
            raise ValueError(
                f"mel_mask_bands={mel_mask_bands} was asked for; there are num_mels={num_mels} "
                "bands to mask. Use fewer."
            )
        self.subsampling = subsampling
        self.register_buffer("longest", torch.tensor(EXAMPLE_FRAMES))
        self.normalization = Normalization(normalization, num_mels)
        self.augment = SpecAugment(
            time_masks, time_mask_frames, mel_masks, mel_mask_bands, zero_masking=True
        )
        self.convolutions = subsampling_of(  # pyright: ignore[reportAttributeAccessIssue]
            subsampling, num_mels, stack.model_dim, width=width, causal=stack.causal
        )
        # The row convolution of Deep Speech 2 (Amodei et al., 2016).
        self.lookahead = (
            Convolution(
                stack.model_dim, stack.model_dim, left=0, right=lookahead, groups=stack.model_dim
            )
            if lookahead
            else None
        )
        self.project_in = nn.Linear(stack.model_dim, stack.input_dim)
        self.stack = stack
        self.head = Head(stack.model_dim, 1 + num_labels)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.head.weight.device

    def example(self) -> tuple[Features, Lengths]:
        """Return an input of typical length, on the device of the weights."""
        num_mels = len(self.normalization.mean)
        features = torch.zeros(1, EXAMPLE_FRAMES, num_mels, device=self.device)
        return features, torch.full((1,), EXAMPLE_FRAMES, device=self.device)

    def adopt(self, mean: PerBand, deviation: PerBand, longest: int) -> None:
        """Set the statistics of the training corpus, which are saved with the weights.

        Args:
            mean: The mean of each band.
            deviation: The standard deviation of each band.
            longest: The length of the longest utterance, in frames.
        """
        self.normalization.mean.copy_(mean)
        self.normalization.deviation.copy_(deviation)
        self.longest.fill_(longest)

    def num_outputs(self, num_frames: Frames) -> Frames:
        """Return the number of outputs for a number of frames, or for each of several."""
        return (num_frames - 1) // self.subsampling + 1

    def forward(self, features: Features, lengths: Lengths) -> tuple[Scores, Lengths]:
        """Return the scores of each label, frame by frame, and their lengths.

        Args:
            features: The log-mel features, padded.
            lengths: The length of each utterance in frames, at least 1.

        Raises:
            ValueError: See `check_lengths`.
        """
        check_lengths(lengths, *features.shape[:2])
        x = self.normalization(features, lengths)
        if self.training:
            x = self.augment(x.mT).mT
        for convolution in self.convolutions:
            x, lengths = convolution(x, lengths)
            x = x.relu()
        if self.lookahead is not None:
            x = x + self.lookahead(x, lengths)[0]
        return self.head(self.stack(self.project_in(x), lengths)), lengths

    def init_state(self, batch: int = 1) -> StreamState:
        """Return the initial (empty) state of a stream.

        Raises:
            ValueError: The encoder is not causal.
        """
        if not (isinstance(self.stack, Transformer) and self.stack.causal):
            raise ValueError(
                "This encoder was trained on whole utterances and cannot stream. "
                "Train one with model.causal=true."
            )
        frames = tuple(convolution.init_state(batch) for convolution in self._over_time())
        return StreamState(frames, self.stack.init_state(batch))

    def stream(
        self, features: Features, state: StreamState, *, last: bool = False
    ) -> tuple[Scores, StreamState]:
        """Return the scores that further frames complete, equal to those of `forward`.

        Args:
            features: The new frames; there may be none.
            state: The past. Left unmodified.
            last: Whether the recording ends here, so that no output waits for later frames.
        """
        assert isinstance(self.stack, Transformer)
        everything = torch.full((len(features),), features.shape[1], device=features.device)
        x = self.normalization(features, everything)
        frames = []
        for convolution, kept in zip(self._over_time(), state.frames, strict=True):
            outputs, kept = convolution.stream(x, kept, last=last)
            if convolution is self.lookahead:
                waiting = state.frames[-1]
                x = torch.cat([waiting, x], dim=1)[:, : outputs.shape[1]] + outputs
            else:
                x = outputs.relu()
            frames.append(kept)
        if x.shape[1] == 0:
            scores = x.new_zeros(len(x), 0, self.head.out_features)
            return scores, StreamState(tuple(frames), state.stack)
        x, stack = self.stack.prefill(self.project_in(x), state.stack)
        return self.head(x), StreamState(tuple(frames), stack)

    def _over_time(self) -> list[Convolution]:
        """Return the convolutions, in the order in which they run."""
        return [*self.convolutions, *([] if self.lookahead is None else [self.lookahead])]
