"""What a finished run of the copy task shows: words that the recurrent form copied."""

import torch
from lightning import Trainer

from linear_transformers.data import Copies, DataModule
from linear_transformers.data.sequences import to_sequences
from linear_transformers.runtime.reports.costs import report_costs
from linear_transformers.runtime.runs import Run
from linear_transformers.runtime.showing import trackers_of
from linear_transformers.runtime.tables import print_table
from linear_transformers.sampling import RecurrentStepper, complete, greedy, prefill
from linear_transformers.tasks import Copying, Task

NUM_WORDS = 256  # copied in recurrent mode
NUM_SHOWN = 8
WIDEST = 48  # symbols of a word that are printed


def report_copies(run: Run, data: DataModule, task: Task, trainer: Trainer) -> list[str]:
    """Copy test words on the model's own, one symbol after the other, and print some of them."""
    assert isinstance(data, Copies)
    assert isinstance(task, Copying)
    task.model.eval()
    sequences = to_sequences(data.splits.test[:NUM_WORDS]).to(task.model.device)
    copied = copy_words(task, sequences)
    right = copied == sequences
    counts = task.is_copy(sequences)
    whole = (right | ~counts).all(1).float().mean().item()
    rows = []
    for given, made, part in zip(sequences, copied, counts, strict=True):
        word, copy = given[part].tolist(), made[part].tolist()
        same = sum(a == b for a, b in zip(word, copy, strict=True))
        rows.append({"word": _text(word), "copy": _text(copy), "right": f"{same}/{len(word)}"})
    for tracker in trackers_of(trainer):
        tracker.log_metrics({"test/words_copied": whole}, step=trainer.global_step)
        tracker.log_table("samples/copied", rows[:NUM_SHOWN], trainer.global_step)
    figures = trainer.callback_metrics
    print_table(
        "copying",
        ("accuracy", f"{figures['test/accuracy']:.2%}", "of symbols, given the true ones before"),
        ("loss", f"{figures['test/loss']:.4f}", "nats a symbol"),
        ("whole words", f"{whole:.2%}", f"of {len(rows)}, in recurrent mode, on its own"),
    )
    shown = ((f"{row['word']}", row["right"], row["copy"]) for row in rows[:NUM_SHOWN])
    print_table("some of them", *shown)
    report_costs(data, task, trainer)
    return []


def copy_words(task: Copying, sequences: torch.Tensor) -> torch.Tensor:
    """Replace the copy in each sequence by what the model makes of it: the most likely symbols,
    given the word, the separator and its own symbols so far."""
    stepper = RecurrentStepper(task.model)
    words = prefill(stepper, sequences.long(), ~task.is_copy(sequences))
    noise = torch.zeros(*sequences.shape, task.distribution.noise_dim)
    return complete(stepper, greedy, words, torch.arange(len(sequences)), noise)


def _text(symbols: list[int]) -> str:
    text = "".join(f"{symbol:x}" for symbol in symbols) if max(symbols) < 16 else str(symbols)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
