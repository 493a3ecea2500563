"""The speech model of Katharopoulos et al. (2020), section 4.3: log-mel features in, the scores of
phones and of a blank out, frame by frame, for CTC. With a causal stack it recognises as it hears.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchaudio.transforms import SpecAugment

from linear_transformers.models.acoustic import Convolution, Normalization, subsampling_of
from linear_transformers.models.bilstm import BiLstm
from linear_transformers.models.transformer import StackState, Transformer
from linear_transformers.ops.precision import without_autocast
from linear_transformers.shapes import Features, Lengths, PerBand

Scores = Float[Tensor, "b s p"]
EXAMPLE_FRAMES = 400  # four seconds


class StreamState(NamedTuple):
    """What is remembered of a recording that goes on: the last frames that each convolution
    still needs, and the state of the stack."""

    frames: tuple[Tensor, ...]
    stack: StackState


class SpeechEncoder(nn.Module):
    """Normalisation, convolutional subsampling, a stack, and a score for each label.

    Args:
        stack: A `Transformer` or `BiLstm`.
        num_mels: f.
        num_labels: Without the blank, which is label 0 and comes on top.
        subsampling: Frames that become one: 1, 2 or 4.
        width: Frames that each convolution sees.
        lookahead: Of a causal stack: how many frames, after subsampling, an output waits for.
        normalization: See `Normalization`.
        time_masks: Stretches of time hidden in training (SpecAugment, Park et al., 2019).
        time_mask_frames: The longest of them.
        mel_masks: Bands hidden in training.
        mel_mask_bands: The widest of them.

    Raises:
        ValueError: An unknown choice, or one that a causal stack, or one that is not, lacks.
    """

    convolutions: Sequence[Convolution]
    longest: Tensor

    def __init__(
        self,
        stack: Transformer | BiLstm,
        num_mels: int,
        num_labels: int,
        *,
        subsampling: int = 4,
        width: int = 3,
        lookahead: int = 0,
        normalization: str = "corpus",
        time_masks: int = 0,
        time_mask_frames: int = 0,
        mel_masks: int = 0,
        mel_mask_bands: int = 0,
    ):
        super().__init__()
        if lookahead < 0 or (lookahead and not stack.causal):
            raise ValueError(
                f"lookahead={lookahead} was asked for: it is the number of frames that a causal "
                "encoder waits for. Use model.causal=true, or lookahead=0."
            )
        if stack.causal and normalization == "utterance":
            raise ValueError(
                "normalization=utterance needs whole utterances, which a causal encoder does "
                "not wait for. Use normalization=corpus."
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
        # Row convolution of Deep Speech 2 (Amodei et al., 2016).
        self.lookahead = (
            Convolution(
                stack.model_dim, stack.model_dim, left=0, right=lookahead, groups=stack.model_dim
            )
            if lookahead
            else None
        )
        self.project_in = nn.Linear(stack.model_dim, stack.input_dim)
        self.stack = stack
        self.head = nn.Linear(stack.model_dim, 1 + num_labels)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    def example(self) -> tuple[Features, Lengths]:
        """An input of a usual length, on the weights' device."""
        num_mels = len(self.normalization.mean)
        features = torch.zeros(1, EXAMPLE_FRAMES, num_mels, device=self.device)
        return features, torch.full((1,), EXAMPLE_FRAMES, device=self.device)

    def adopt(self, mean: PerBand, deviation: PerBand, longest: int) -> None:
        """Take over what the training corpus is like: it is saved with the weights.

        Args:
            mean: Of each band.
            deviation: Of each band.
            longest: Frames of the longest utterance.
        """
        self.normalization.mean.copy_(mean)
        self.normalization.deviation.copy_(deviation)
        self.longest.fill_(longest)

    def num_outputs(self, num_frames: int) -> int:
        """How many outputs there are of so many frames."""
        return (num_frames - 1) // self.subsampling + 1

    def forward(self, features: Features, lengths: Lengths) -> tuple[Scores, Lengths]:
        """The scores of each label, frame by frame, and how many frames of each utterance count.

        Args:
            features: Log-mel, padded.
            lengths: Frames of each utterance, at least 1.
        """
        x = self.normalization(features, lengths)
        if self.training:
            x = self.augment(x.mT).mT
        for convolution in self.convolutions:
            x, lengths = convolution(x, lengths)
            x = x.relu()
        if self.lookahead is not None:
            x = x + self.lookahead(x, lengths)[0]
        return self._score(self.stack(self.project_in(x), lengths)), lengths

    def init_state(self, batch: int = 1) -> StreamState:
        """Nothing heard yet.

        Raises:
            ValueError: The encoder is not causal.
        """
        if not (isinstance(self.stack, Transformer) and self.stack.causal):
            raise ValueError(
                "This encoder was trained to see whole utterances: it cannot recognise as it "
                "hears. Train one with model.causal=true."
            )
        frames = tuple(convolution.init_state(batch) for convolution in self._over_time())
        return StreamState(frames, self.stack.init_state(batch))

    def stream(
        self, features: Features, state: StreamState, *, last: bool = False
    ) -> tuple[Scores, StreamState]:
        """The scores that further frames complete, equal to those of `forward`.

        Args:
            features: The frames that came; there may be none.
            state: The past. Left unmodified.
            last: Whether the recording ends here, and what waits for later frames does so in vain.
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
            none = x.new_zeros(len(x), 0, self.head.out_features)
            return none, StreamState(tuple(frames), state.stack)
        x, stack = self.stack.prefill(self.project_in(x), state.stack)
        return self._score(x), StreamState(tuple(frames), stack)

    def _over_time(self) -> list[Convolution]:
        """The convolutions, in the order in which they see a recording."""
        return [*self.convolutions, *([] if self.lookahead is None else [self.lookahead])]

    def _score(self, x: Tensor) -> Scores:
        with without_autocast(x):
            return self.head(x.to(self.head.weight.dtype))
