"""Language modelling: the next token of a text, given those before it."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from linear_transformers.data.text import END, NOTHING, TextShape, TextSource
from linear_transformers.models import StackState
from linear_transformers.ops.lengths import valid
from linear_transformers.shapes import TextBatch
from linear_transformers.tasks.base import Evaluation, Figure, Loss, Output, Statistics, total
from linear_transformers.tasks.language_modeling.exporting import ExportTexts
from linear_transformers.tasks.language_modeling.model import LanguageModel
from linear_transformers.tasks.language_modeling.report import drawn, report
from linear_transformers.tasks.language_modeling.sampling import SampleText
from linear_transformers.tasks.sequences import SequenceTask


class LanguageModeling(SequenceTask):
    """Prediction of each token of a text from those before it.

    The loss is in nats a token, the end of a document included. Bits per byte are over the bytes of
    UTF-8, so that models of other tokens can be compared; perplexity is that of a token.

    Where the data carry states, a segment is read with the state that the one before it left.

    Args:
        shape: See `SequenceTask`.
        model: See `SequenceTask`.
        **options: See `SequenceTask`.
    """

    shape_class = TextShape
    unordered = "Tokens"
    uses: ClassVar = {"sample": SampleText, "export": ExportTexts}
    trained_class = LanguageModel
    figures = (Figure("bits_per_byte", "bits/byte"), Figure("perplexity", "of a token"))
    shape: TextShape

    def __init__(self, shape: TextShape, model: Callable[..., nn.Module], **options: Any):
        super().__init__(shape, model, **options)
        self.bytes_of = torch.tensor([len(piece) for piece in shape.tokenizer.pieces])
        self._state: StackState | None = None  # after the last batch of training
        self._evaluated: StackState | None = None  # of evaluation, which comes between them

    def prepare(self, data: TextSource) -> list[str]:
        if data.carry_state:
            self._check_carried()
        return super().prepare(data)

    def loss(self, batch: TextBatch) -> Loss:
        batch = self._divisible(batch)
        nats, self._state = self._nats(batch, self._state)
        return Loss(nats.sum(), self._real(batch).sum())

    def statistics(self, batch: TextBatch) -> Statistics:
        batch = self._divisible(batch)
        nats, self._evaluated = self._nats(batch, self._evaluated)
        real, values = self._real(batch), self.here(batch.values)
        self.bytes_of = self.bytes_of.to(values.device)
        return {
            "nats": total(nats),
            "tokens": real.sum(),
            "bytes": (self.bytes_of[values] * real).sum(),
        }

    def judge(self, statistics: Statistics) -> dict[str, Tensor]:
        nats = statistics["nats"]
        return {
            "bits_per_byte": nats / math.log(2) / statistics["bytes"],
            "perplexity": (nats / statistics["tokens"]).exp(),
        }

    def positions_in(self, batch: TextBatch) -> Tensor:
        return self._real(self._divisible(batch)).sum()

    def trial(self, model: Any) -> tuple[Tensor, int]:
        tokens = torch.zeros(1, self.shape.segment, dtype=torch.long, device=model.device)
        return model(tokens), self.shape.segment

    @property
    def carried(self) -> list[Any] | None:
        return None if self._state is None else tree_flatten(self._state)[0]

    @carried.setter
    def carried(self, parts: list[Any]) -> None:
        like = tree_flatten(self.model.init_state(1))[1]
        self._state = tree_unflatten(parts, like)

    def show(self, data: TextSource, output: Output, *, n: int, seed: int) -> None:
        texts = drawn(self, n=n, seed=seed)
        output.table("samples/drawn", [{"text": text} for text in texts])

    def report(self, data: TextSource, evaluation: Evaluation, output: Output) -> list[str]:
        return report(self, data, evaluation, output)

    def _nats(
        self, batch: TextBatch, state: StackState | None
    ) -> tuple[Float[Tensor, "b t"], StackState | None]:
        """Return the nats of each token, 0 at padding, and the state to carry on."""
        if batch.before is None:
            parameters, values = self.predict(batch.values)
        else:
            continues, values = batch.before != NOTHING, batch.values
            start = torch.where(continues, batch.before, self.model.start_token)
            tokens = torch.cat([start.unsqueeze(1), values[:, :-1]], dim=1)
            parameters, state = self.model.prefill(tokens, self._begun(continues, state))
            state = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, state)
        nats = -self.distribution.log_prob(parameters, values)
        return torch.where(self._real(batch), nats, 0), state

    def _begun(self, continues: Bool[Tensor, " b"], state: StackState | None) -> StackState:
        """Return the state before a batch: that of the batch before, empty where a text begins."""
        empty = self.model.init_state(len(continues))
        if state is None or _rows(state) != _rows(empty):  # then all texts begin
            return empty

        def chosen(carried: Any, nothing: Any) -> Any:
            if not isinstance(carried, Tensor):
                return carried
            rows = continues.view(-1, *[1] * (carried.ndim - 1))
            return torch.where(rows, carried.to(nothing), nothing)

        return tree_map(chosen, state, empty)

    def _divisible(self, batch: TextBatch) -> TextBatch:
        """Return a batch with a position for each device: the end of a text may have fewer."""
        missing = max(0, self.place.devices - batch.values.shape[1])
        return batch._replace(values=F.pad(batch.values, (0, missing), value=END))

    def _real(self, batch: TextBatch) -> Tensor:
        return self.here(valid(batch.lengths, batch.values.shape[1]))

    def _check_carried(self) -> None:
        """Refuse models whose states cannot be carried over segments."""
        stack = self.model.stack
        if not stack.constant_state:
            raise ValueError(
                f"data.carry_state=true carries a state over whole documents, and that of "
                f"{stack.mixer_name} grows with them. Use a model of constant state: model=linear, "
                "or model=window."
            )
        if stack.positions.kind != "none":
            raise ValueError(
                f"data.carry_state=true goes on in documents of any length, and "
                f"model.positions={stack.positions.kind} is of a place in a segment. Use "
                "model.positions=none."
            )
        if self.place.devices > 1:
            raise ValueError(
                "data.carry_state=true carries states from batch to batch, and "
                "trainer=sequence_parallel from device to device. Use trainer=ddp."
            )


def _rows(state: StackState) -> int:
    return next(len(x) for x in tree_flatten(state)[0] if isinstance(x, Tensor))
