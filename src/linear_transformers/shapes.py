"""The alphabet. One letter means one thing, in annotations, einsums and comments.

    b  batch            h  head              e  model width
    k  head of keys and values: as many as h, or fewer, each of which j heads share
    t  query position   d  query/key width   v  vocabulary, or pixel levels
    s  source position  c  feature width     m  value width, per head
    n  chunk            l  position in chunk p  parameters of a distribution
    a  hashing round    w  window           g  random direction
    f  mel bands        u  labels of an utterance
    i  input width of a stack of layers
    r  rows: sequences selected from a batch; one selected twice is forked
    o  sources selected from a batch
    z  uniform numbers that one sample takes

A source position is that of a key, or of an encoder's output. Parameters are those of a
distribution over values, or over the labels of a frame.

phi maps d to c; the recurrent state is c by m. Letters follow Katharopoulos et al. (2020)
where the paper has one, except that length is t: n is nobody's batch here.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Queries = Float[Tensor, "b t h d"]
Keys = Float[Tensor, "b s k d"]
Values = Float[Tensor, "b s k m"]
Outputs = Float[Tensor, "b t h m"]

Query = Float[Tensor, "b h d"]
Key = Float[Tensor, "b k d"]
Value = Float[Tensor, "b k m"]
Output = Float[Tensor, "b h m"]

Hidden = Float[Tensor, "b t e"]
HiddenOne = Float[Tensor, "b e"]
Source = Float[Tensor, "b s e"]
Tokens = Int[Tensor, "b t"]
SourceTokens = Int[Tensor, "b s"]
TokensOne = Int[Tensor, "b"]
Lengths = Int[Tensor, "b"]
Rows = Int[Tensor, "r"]
Sources = Int[Tensor, "o"]
Known = Bool[Tensor, "t"]
Places = Int[Tensor, "t"]
PerSequence = Float[Tensor, "b"]
PerSequenceFlag = Bool[Tensor, "b"]
PerBand = Float[Tensor, "f"]

Features = Float[Tensor, "b t f"]
Labels = Int[Tensor, "b u"]


class SpeechBatch(NamedTuple):
    """A batch of utterances, padded to the longest.

    Attributes:
        features: The log-mel features.
        lengths: The lengths of `features`, in frames; on the CPU.
        labels: The labels, padded with 0, the blank of CTC.
        label_lengths: The numbers of labels; on the CPU.
    """

    features: Features
    lengths: Lengths
    labels: Labels
    label_lengths: Lengths

    def to(self, device: torch.device) -> "SpeechBatch":
        """Move features and labels. The lengths stay: the loss would wait for the device."""
        features, labels = (x.to(device, non_blocking=True) for x in (self.features, self.labels))
        return self._replace(features=features, labels=labels)


class PairBatch(NamedTuple):
    """A batch of texts and of what they are to become, in tokens, padded to the longest.

    Attributes:
        source: The tokens of the sources.
        source_lengths: The lengths of `source`, at least 1.
        target: The tokens of the targets, from the start token to the end token.
        target_lengths: The lengths of `target`, at least 2.
    """

    source: SourceTokens
    source_lengths: Lengths
    target: Tokens
    target_lengths: Lengths


class TextBatch(NamedTuple):
    """A batch of segments of texts, in tokens, padded to the longest.

    Attributes:
        values: The tokens.
        lengths: The numbers of tokens that are no padding; 0 is a row of padding alone.
        before: The token before each segment, whose past was in the same row of the batch before;
            -1 where a text is read from here on. None where no state is carried.
    """

    values: Tokens
    lengths: Lengths
    before: TokensOne | None
