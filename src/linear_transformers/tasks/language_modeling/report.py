"""What a run of language modelling shows: figures, what compression gives, and drawn texts."""

import lzma
from collections.abc import Sequence

import torch

from linear_transformers.data.text import Document, TextSource
from linear_transformers.pictures.tables import print_table
from linear_transformers.pictures.texts import visible
from linear_transformers.runs.folder import shown
from linear_transformers.sampling import stepper_of
from linear_transformers.tasks.base import Evaluation, Output
from linear_transformers.tasks.costs import report_costs
from linear_transformers.tasks.language_modeling.continuation import continued, whole
from linear_transformers.tasks.sequences import SequenceTask

LENGTH = 500  # tokens of a drawn text
COMPRESSED = 2**23  # bytes of the test texts, at most: xz reads a megabyte or two a second


def report(
    task: SequenceTask, data: TextSource, evaluation: Evaluation, output: Output
) -> list[str]:
    """Print and show figures, what compression gives, a drawn text, and costs."""
    figures, alone = evaluation.figures, compressed(data.texts("test"))
    output.summary({"baseline/xz": alone})
    print_table(
        "test bits/byte",
        ("this model", f"{figures['bits_per_byte']:.3f}", task.model.stack.mixer_name),
        ("xz -9e", f"{alone:.3f}", "the test texts on their own"),
        ("perplexity", f"{figures['perplexity']:.2f}", f"of {data.shape.tokenizer.noun}"),
    )
    (text,) = drawn(task, n=1, seed=0)
    output.table("samples/test", [{"text": text}])
    file = output.file("drawn.txt")
    file.write_text(text, encoding="utf-8")
    print(f"\n{visible(text)}")
    report_costs(task, data.noun, output)
    return [f"drawn    {shown(file)}"]


def drawn(task: SequenceTask, *, n: int, seed: int) -> list[str]:
    """Return texts that a model makes of nothing."""
    most, how = task.model.stack.positions.max_length, task.distribution
    stepper, nothing = stepper_of(task.model), torch.zeros(0, dtype=torch.long)
    options = {"sample": how.sample, "n": n, "seed": seed}
    texts = continued(stepper, how, task.shape.tokenizer, nothing, **options)
    return whole(texts, LENGTH if most is None else min(LENGTH, most - 1))  # after the start


def compressed(texts: Sequence[Document]) -> float:
    """Return the bits per byte of texts that `xz -9e` compresses together, at most the first eight
    megabytes."""
    read = bytearray()
    for part in (part for text in texts for part in text.parts()):
        read += part
        if len(read) >= COMPRESSED:
            break
    return 8 * len(lzma.compress(read, preset=9 | lzma.PRESET_EXTREME)) / len(read)
