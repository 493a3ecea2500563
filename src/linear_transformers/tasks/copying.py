"""Copying a word, symbol by symbol: Katharopoulos et al. (2020), section 4.1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from linear_transformers.config.ranges import Count
from linear_transformers.data.copies import Copies, CopyShape
from linear_transformers.data.sequences import to_sequences
from linear_transformers.pictures.tables import print_table
from linear_transformers.runs.folder import claim_folder
from linear_transformers.runs.outcomes import Outcome
from linear_transformers.sampling import RecurrentStepper, complete, greedy, prefill
from linear_transformers.tasks.base import (
    Evaluation,
    Figure,
    Loss,
    Output,
    Row,
    Statistics,
    Trained,
    Use,
    Watch,
    total,
)
from linear_transformers.tasks.costs import report_costs
from linear_transformers.tasks.exporting import ExportSequences
from linear_transformers.tasks.generation import SequenceModel
from linear_transformers.tasks.sequences import Sequences, SequenceTask

NUM_WORDS = 256  # copied in recurrent mode
NUM_SHOWN = 8
WIDEST = 48  # symbols of a word that are printed


@dataclass(kw_only=True)
class SampleCopies(Use[Trained]):
    """Copy test words. See conf/sample/copying.yaml for the options."""

    n: Count

    def run(self, trained: Trained, watch: Watch) -> Outcome:
        """Copy test words in recurrent mode, and print them."""
        data = trained.data()
        if self.n > (found := len(data.splits.test)):
            raise ValueError(f"n={self.n} was asked for; there are {found} test words.")
        rows, whole = trained.task.copies(data, self.n)
        with watch(claim_folder(trained.folder / "samples" / "copies", numbered=True)) as output:
            output.table("samples/copied", rows)
        print_words(rows)
        print(f"\nwhole words  {whole:.2%} of {len(rows)}")
        return Outcome(None, {"words_copied": round(whole, 4)})


class Copying(SequenceTask):
    """Copying, `w separator w padding`: only the copy is scored, since the word is random.

    The loss is in nats a copied symbol; accuracy is the share of copied symbols that are the
    most likely ones, each given the true ones before it.

    Args:
        shape: See `SequenceTask`.
        model: See `SequenceTask`.
        distribution: See `SequenceTask`.
    """

    shape_class = CopyShape
    unordered = "Copied symbols"
    uses: ClassVar = {"sample": SampleCopies, "export": ExportSequences}
    trained_class = SequenceModel
    figures = (Figure("loss", "nats a symbol"), Figure("accuracy", "of symbols", "max"))
    shape: CopyShape

    def loss(self, batch: Sequences) -> Loss:
        nats, _, copied = self._copied(batch)
        return Loss(nats.sum(), copied.sum())

    def statistics(self, batch: Sequences) -> Statistics:
        nats, right, copied = self._copied(batch)
        return {"nats": total(nats), "right": right.sum(), "symbols": copied.sum()}

    def judge(self, statistics: Statistics) -> dict[str, Tensor]:
        symbols = statistics["symbols"]
        return {"loss": statistics["nats"] / symbols, "accuracy": statistics["right"] / symbols}

    def report(self, data: Copies, evaluation: Evaluation, output: Output) -> list[str]:
        rows, whole = self.copies(data, NUM_WORDS)
        output.metrics({"test/words_copied": whole})
        output.table("samples/copied", rows[:NUM_SHOWN])
        figures = evaluation.figures
        print_table(
            "copying",
            ("accuracy", f"{figures['accuracy']:.2%}", "of symbols, given the true ones before"),
            ("loss", f"{figures['loss']:.4f}", "nats a symbol"),
            ("whole words", f"{whole:.2%}", f"of {len(rows)}, in recurrent mode, on its own"),
        )
        print_words(rows[:NUM_SHOWN])
        report_costs(self, data.noun, output)
        return []

    def copies(self, data: Copies, number: int) -> tuple[list[Row], float]:
        """Copy test words in recurrent mode, each symbol given the model's own before it.

        Returns:
            A row for each word, and the share of words that were copied whole.
        """
        words = to_sequences(data.splits.test[:number]).to(self.model.device).long()
        counts = self.is_copy(words)
        stepper = RecurrentStepper(self.model)
        start = prefill(stepper, words, ~counts)
        noise = torch.zeros(*words.shape, self.distribution.noise_dim)
        copied = complete(stepper, greedy, start, torch.arange(len(words)), noise)
        rows = []
        for given, made, part in zip(words, copied, counts, strict=True):
            word, copy = given[part].tolist(), made[part].tolist()
            same = sum(a == b for a, b in zip(word, copy, strict=True))
            rows.append({"word": _text(word), "copy": _text(copy), "right": f"{same}/{len(word)}"})
        whole = ((copied == words) | ~counts).all(1).float().mean().item()
        return rows, whole

    def _copied(self, batch: Sequences) -> tuple[Tensor, Tensor, Tensor]:
        """Return the nats of each copied symbol, 0 elsewhere; whether it is copied and the most
        likely one; and whether it is copied.

        Not the symbols alone: their number is on the device, which would be waited for.
        """
        parameters, values = self.predict(batch)
        copied = self.here(self.is_copy(batch))
        nats = torch.where(copied, -self.distribution.log_prob(parameters, values), 0)
        return nats, copied & (parameters.argmax(-1) == values), copied

    def is_copy(self, batch: Sequences) -> Bool[Tensor, "b t"]:
        """Return which values are symbols after the separator."""
        after = (batch == self.shape.separator).long().cumsum(1) == 1
        return after & (batch < self.shape.separator)


def print_words(rows: Sequence[Row]) -> None:
    """Print words beside their copies."""
    print_table("some of them", *((row["word"], row["right"], row["copy"]) for row in rows))


def _text(symbols: list[int]) -> str:
    text = "".join(f"{symbol:x}" for symbol in symbols) if max(symbols) < 16 else str(symbols)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
