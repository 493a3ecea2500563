"""Speech recognition by CTC: Katharopoulos et al. (2020), section 4.3."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from linear_transformers.ctc import confusions, ctc_loss, error_rates, greedy, spellable
from linear_transformers.data.speech import SpeechShape, SpeechSource
from linear_transformers.models import SpeechEncoder
from linear_transformers.runs.folder import shown
from linear_transformers.shapes import SpeechBatch
from linear_transformers.tasks.base import (
    Evaluation,
    Figure,
    Loss,
    Output,
    Statistics,
    Task,
    total,
)
from linear_transformers.tasks.speech_recognition.exporting import ExportSpeech
from linear_transformers.tasks.speech_recognition.model import SpeechModel
from linear_transformers.tasks.speech_recognition.report import report
from linear_transformers.tasks.speech_recognition.transcribing import Transcribe


class SpeechRecognition(Task):
    """Training by CTC, judged by the error rate of the most likely paths.

    The rate is the number of edits over that of phones or characters in the references, both
    summed over the corpus, in percent. The loss is in nats per phone or character.

    Args:
        shape: The shape of the recordings and labels.
        model: Makes the stack of layers of the encoder.
        encoder: Makes the model from the stack, the number of mel bands and of labels.
    """

    shape_class = SpeechShape
    uses: ClassVar = {"transcribe": Transcribe, "export": ExportSpeech}
    trained_class = SpeechModel
    model: SpeechEncoder
    shape: SpeechShape

    def __init__(
        self,
        shape: SpeechShape,
        model: Callable[..., nn.Module],
        *,
        encoder: Callable[..., SpeechEncoder],
    ):
        super().__init__(shape, encoder(model(max_length=None), shape.num_mels, len(shape.labels)))
        self.figures = (
            Figure(f"{shape.unit}_error_rate", f"% of {shape.kind}"),
            Figure("loss", f"nats a {shape.unit}"),
        )

    @property
    def description(self) -> str:
        return self.model.stack.description

    def kernel_on(self, device: torch.device) -> str:
        return self.model.stack.kernel_on(device)

    def prepare(self, data: SpeechSource) -> list[str]:
        left_out = data.leave_out(self.model.num_outputs)
        mean, deviation = map(torch.from_numpy, data.features("train").statistics())
        self.model.adopt(mean, deviation, data.longest)
        return [*super().prepare(data), *left_out]

    def loss(self, batch: SpeechBatch) -> Loss:
        nats, _, _ = self._nats(batch)
        return Loss(nats.sum(), batch.label_lengths.sum())

    def statistics(self, batch: SpeechBatch) -> Statistics:
        nats, scores, lengths = self._nats(batch)
        sizes = batch.label_lengths
        references = [
            row[:size] for row, size in zip(batch.labels.tolist(), sizes.tolist(), strict=True)
        ]
        confused = confusions(references, greedy(scores, lengths), len(self.shape.labels))
        # An utterance with too few outputs for its labels has errors, but no loss.
        spelt = spellable(lengths, batch.labels.cpu(), sizes)
        return {
            "confusions": confused.to(nats.device),
            "nats": total(nats[spelt.to(nats.device)]),
            "labels": sizes[spelt].sum().to(nats.device),
        }

    def judge(self, statistics: Statistics) -> dict[str, Tensor]:
        rates = error_rates(statistics["confusions"])
        return {
            self.figure.name: rates.pop("errors"),
            **rates,
            "loss": statistics["nats"] / statistics["labels"].clamp(min=1),
        }

    def positions_in(self, batch: SpeechBatch) -> Tensor:
        return batch.lengths.sum()

    def trial(self, model: SpeechEncoder) -> tuple[Tensor, int]:
        features, lengths = model.example()
        return model(features, lengths)[0], features.shape[1]

    def report(self, data: SpeechSource, evaluation: Evaluation, output: Output) -> list[str]:
        return report(self.model, data, evaluation, output)

    def next_call(self, output: Output) -> tuple[str, ...]:
        return "transcribe", f"audio={shown(output.folder)}"

    def _nats(self, batch: SpeechBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the nats of each utterance; and the scores with their lengths, on the CPU."""
        device = batch.features.device
        scores, _ = self.model(batch.features, batch.lengths.to(device, non_blocking=True))
        lengths = self.model.num_outputs(batch.lengths)
        nats = ctc_loss(scores, lengths, batch.labels, batch.label_lengths)
        return nats, scores, lengths
