"""Phones of spoken utterances, by CTC: Katharopoulos et al. (2020), section 4.3."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import MeanMetric, Metric

from linear_transformers.ctc import ctc_loss, edits, greedy, spellable
from linear_transformers.models import SpeechEncoder
from linear_transformers.shapes import SpeechBatch
from linear_transformers.tasks.base import OptimizerFactory, Task
from linear_transformers.tasks.schedules import ScheduleFactory


class PhoneErrors(Metric):
    """What was said for what, over a whole corpus and over all devices.

    `counts[a, b]` is how often b stands where a should; row 0 counts insertions, column 0
    deletions.
    """

    full_state_update = False
    counts: Tensor
    found: Tensor  # `counts` of all devices, of the last `compute`

    def __init__(self, num_labels: int):
        super().__init__()
        size = 1 + num_labels
        zeros = torch.zeros(size, size, dtype=torch.long)
        self.add_state("counts", zeros, dist_reduce_fx="sum")

    def update(self, references: Sequence[list[int]], hypotheses: Sequence[list[int]]) -> None:
        """Count the edits that lead from references to hypotheses."""
        pairs = [
            pair
            for reference, hypothesis in zip(references, hypotheses, strict=True)
            for pair in edits(reference, hypothesis).pairs
        ]
        if pairs:
            index = torch.tensor(pairs, device=self.counts.device).T
            # Counted on the CPU: adding up equal places is not deterministic on a GPU.
            added = torch.zeros_like(self.counts, device="cpu")
            added.index_put_(tuple(index.cpu()), torch.ones(len(pairs), dtype=torch.long), True)
            self.counts += added.to(self.counts.device)

    def compute(self) -> dict[str, Tensor]:
        """The rates of errors, in percent of the references' phones."""
        self.found = self.counts.clone()
        references = self.counts[1:].sum().clamp(min=1)
        right = self.counts.diagonal().sum()
        rates = {
            "phone_error_rate": self.counts.sum() - right,
            "substitutions": self.counts[1:, 1:].sum() - right,
            "deletions": self.counts[1:, 0].sum(),
            "insertions": self.counts[0, 1:].sum(),
        }
        return {name: 100 * count / references for name, count in rates.items()}

    def confusions(self, count: int) -> list[tuple[int, int, int]]:
        """Of the last `compute`, the commonest errors: what was said, what was heard, how often."""
        wrong = self.found.clone().fill_diagonal_(0)
        most = wrong.flatten().topk(min(count, wrong.numel()))
        times, places = most.values.tolist(), most.indices.tolist()
        size = len(wrong)
        return [
            (place // size, place % size, n) for n, place in zip(times, places, strict=True) if n
        ]


class SpeechRecognition(Task):
    """Train by CTC, judge by the phone error rate of the most likely paths.

    The rate is of edits over the references' phones, both summed over the corpus, in percent;
    the loss is in nats a phone.

    Args:
        model: Scores labels frame by frame.
        labels: What each label above the blank means.
        optimizer: See `Task`.
        scheduler: See `Task`.
    """

    figure: ClassVar[str] = "phone_error_rate"
    unit: ClassVar[str] = "% of phones"
    model: SpeechEncoder

    def __init__(
        self,
        model: SpeechEncoder,
        labels: Sequence[str],
        *,
        optimizer: OptimizerFactory,
        scheduler: ScheduleFactory,
    ):
        super().__init__(model, optimizer=optimizer, scheduler=scheduler)
        self.labels = tuple(labels)
        self.errors = PhoneErrors(len(labels))
        # Not Lightning's own mean: over several devices it drops what is odd of the counts.
        self.loss = MeanMetric()

    def training_step(self, batch: SpeechBatch, batch_idx: int) -> Float[Tensor, ""]:
        nats, _, _ = self._nats(batch)
        count = int(batch.label_lengths.sum())
        loss = nats.sum() / count
        self.log("train/loss", loss.detach(), batch_size=count)
        return loss

    def evaluate(self, stage: str, batch: SpeechBatch) -> None:
        nats, scores, lengths = self._nats(batch)
        sizes = batch.label_lengths
        references = [
            row[:size] for row, size in zip(batch.labels.tolist(), sizes.tolist(), strict=True)
        ]
        self.errors.update(references, greedy(scores, lengths))
        # What has too few frames for its labels has errors, but no loss.
        spelt = spellable(lengths, batch.labels, sizes)
        self.loss.update(nats[spelt] / sizes[spelt], weight=sizes[spelt])

    def on_validation_epoch_end(self) -> None:
        self._log_errors("val")

    def on_test_epoch_end(self) -> None:
        self._log_errors("test")

    def positions_in(self, batch: SpeechBatch) -> Tensor:
        return batch.lengths.sum()

    def _nats(self, batch: SpeechBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Of each utterance; and the scores with their lengths."""
        scores, lengths = self.model(batch.features, batch.lengths)
        nats = ctc_loss(scores, lengths, batch.labels, batch.label_lengths)
        return nats, scores, lengths

    def _log_errors(self, stage: str) -> None:
        for name, rate in self.errors.compute().items():
            self.log(f"{stage}/{name}", rate.float())
        self.errors.reset()
        self.log(f"{stage}/loss", self.loss.compute())
        self.loss.reset()
