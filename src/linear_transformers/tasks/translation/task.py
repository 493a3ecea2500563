"""Translation: Vaswani et al. (2017), by any attention that can attend to another sequence."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from linear_transformers.attention.base import AttentionFactory
from linear_transformers.config.choices import Choice
from linear_transformers.config.ranges import Fraction, ranged
from linear_transformers.data.text import PairShape, PairSource
from linear_transformers.mixers import MultiHeadCrossAttention
from linear_transformers.models import EncoderDecoder, Transformer
from linear_transformers.ops.cross_entropy import IGNORED, cross_entropy
from linear_transformers.ops.lengths import valid
from linear_transformers.shapes import PairBatch
from linear_transformers.tasks.base import (
    Evaluation,
    Figure,
    Loss,
    Output,
    Statistics,
    Task,
    total,
)
from linear_transformers.tasks.exporting import Export
from linear_transformers.tasks.translation.model import Translator
from linear_transformers.tasks.translation.report import examples, report
from linear_transformers.tasks.translation.translating import Translate


class Translation(Task):
    """Training to predict each token of a target from its source and the tokens before it.

    The loss is in nats a token, the end token included. An exact match is a target of which every
    token is the most likely one: what greedy decoding gives.

    Args:
        shape: The shape of the pairs.
        model: Makes the decoder's stack of layers.
        cross: Makes the attention of the decoder's heads to the source; None is their attention to
            the target.
        encoder: Makes the encoder's stack of layers; None is as the decoder's, but not causal.
        shared_embeddings: See `EncoderDecoder`.
        label_smoothing: The share of a target's probability that training divides among all
            tokens (Szegedy et al., 2015).

    Raises:
        ValueError: A model is no transformer, or has no form for its place; see `EncoderDecoder`.
    """

    shape_class = PairShape
    trained_class = Translator
    figures = (
        Figure("loss", "nats a token"),
        Figure("exact_match", "of targets", "max"),
        Figure("accuracy", "of tokens", "max"),
    )
    uses: ClassVar = {"translate": Translate, "export": Export}
    model: EncoderDecoder
    shape: PairShape

    @ranged
    def __init__(
        self,
        shape: PairShape,
        model: Callable[..., Transformer],
        *,
        cross: AttentionFactory | None = None,
        encoder: Callable[..., Transformer] | None = None,
        shared_embeddings: bool = True,
        label_smoothing: Fraction = 0.0,
    ):
        for choice in (model, encoder):
            if isinstance(choice, Choice) and choice.target is not Transformer:
                raise ValueError(
                    f"{choice.path}={choice.name} is no transformer, and cannot attend to a "
                    "source. Choose another model, or speech data: data=espeak."
                )
        cross = cross or _attention_of(model)
        decoder = model(cross=partial(MultiHeadCrossAttention, attention=cross))
        one_way = [mixer.name for mixer in decoder.mixers if not mixer.is_bidirectional]
        if encoder is None and one_way:
            raise ValueError(
                f"{one_way[0]} has no bidirectional form, and cannot be the encoder. Use "
                "task/encoder=linear or task/encoder=softmax."
            )
        stacks = (_not_causal(encoder or model)(), decoder)
        whole = EncoderDecoder(*stacks, shape.num_tokens, shared_embeddings=shared_embeddings)
        super().__init__(shape, whole)
        self.label_smoothing = label_smoothing

    @property
    def description(self) -> str:
        return f"{self.model.encoder.description} -> {self.model.decoder.description}"

    def kernel_on(self, device: torch.device) -> str:
        return self.model.decoder.kernel_on(device)

    def loss(self, batch: PairBatch) -> Loss:
        x = self.model(*_read(batch), scored=False)
        targets, real = _to_predict(batch)
        nats = cross_entropy(
            x.flatten(0, 1),
            self.model.head.weight,
            targets.where(real, IGNORED).flatten(),
            label_smoothing=self.label_smoothing,
        )
        return Loss(nats, real.sum())

    def statistics(self, batch: PairBatch) -> Statistics:
        scores = self.model(*_read(batch))
        targets, real = _to_predict(batch)
        right = (scores.argmax(-1) == targets) & real
        # Scores of a token side by side: across them, a softmax on a CPU takes twice as long.
        flat = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
        return {
            "nats": total(torch.where(real, flat.view_as(targets), 0)),
            "right": right.sum(),
            "tokens": real.sum(),
            "exact": (right == real).all(1).sum(),
            "targets": torch.full((), len(real), device=real.device),
        }

    def judge(self, statistics: Statistics) -> dict[str, Tensor]:
        tokens = statistics["tokens"]
        return {
            "loss": statistics["nats"] / tokens,
            "exact_match": statistics["exact"] / statistics["targets"],
            "accuracy": statistics["right"] / tokens,
        }

    def positions_in(self, batch: PairBatch) -> Tensor:
        return (batch.source_lengths + batch.target_lengths - 1).sum()  # what both stacks read

    def trial(self, model: EncoderDecoder) -> tuple[Tensor, int]:
        tokens, source, lengths = model.example()
        return model(tokens, source, lengths), tokens.shape[1] + source.shape[1]

    def report(self, data: PairSource, evaluation: Evaluation, output: Output) -> list[str]:
        return report(self.model, data, evaluation, output)

    def next_call(self, output: Output) -> tuple[str, ...]:
        return "translate", "text=-"

    def show(self, data: PairSource, output: Output, *, n: int, seed: int) -> None:
        rows = examples(self.model, self.shape, data.pairs("val")[:n])
        output.table("samples/translated", rows)


def _read(batch: PairBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the model reads: the targets but for their ends, and the sources."""
    return batch.target[:, :-1], batch.source, batch.source_lengths


def _to_predict(batch: PairBatch) -> tuple[Tensor, Bool[Tensor, "b t"]]:
    """Return the token after each one that is read, and which of them are no padding."""
    targets = batch.target[:, 1:]
    return targets, valid(batch.target_lengths - 1, targets.shape[1])


def _attention_of(model: Callable[..., Transformer]) -> AttentionFactory:
    """Return the attention of a stack's heads, for its cross-attention."""
    mixer = model.options["mixer"] if isinstance(model, Choice) else None
    if not (isinstance(mixer, Choice) and "attention" in mixer.options):
        raise ValueError(
            "This model's mixer has no attention that another sequence could be given. Use "
            "task/cross=linear or task/cross=softmax."
        )
    return mixer.options["attention"]


def _not_causal(model: Callable[..., Transformer]) -> Callable[..., Transformer]:
    if isinstance(model, Choice):
        return model.with_options(causal=False)
    return partial(model, causal=False)
