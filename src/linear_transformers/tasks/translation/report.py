"""The report of a finished run of translation: its figures, and examples."""

from collections.abc import Sequence
from pathlib import Path

import torch

from linear_transformers.data.text import END, START, Pair, PairShape, PairSource
from linear_transformers.models import EncoderDecoder
from linear_transformers.pictures.attention import draw_weights
from linear_transformers.pictures.tables import print_table
from linear_transformers.pictures.texts import visible
from linear_transformers.runs.folder import shown
from linear_transformers.tasks.base import Evaluation, Output, Row
from linear_transformers.tasks.translation.judging import judged
from linear_transformers.tasks.translation.model import Search, translations

NUM_SHOWN = 10
NUM_JUDGED = 1000  # by BLEU and chrF


def report(
    model: EncoderDecoder, data: PairSource, evaluation: Evaluation, output: Output
) -> list[str]:
    """Print and show figures, some test pairs, what one of them read, and the size of a state."""
    figures, pairs = evaluation.figures, data.pairs("test")
    rows = examples(model, data.shape, pairs[:NUM_SHOWN])
    output.table("samples/translated", rows)
    scores = []
    if data.natural:
        pairs = pairs[:NUM_JUDGED]
        sources = [pair.source for pair in pairs]
        found = translations(model, data.shape, sources, Search())
        scores = judged([best.text for best, *_ in found], [pair.target for pair in pairs])
        output.summary({f"test/{name}": value for name, value, _ in scores})
    print_table(
        "translation",
        *((name, f"{value:.2f}", signature) for name, value, signature in scores),
        *([("", "", f"by a beam search, of {len(pairs)} test pairs")] if scores else ()),
        ("exact match", f"{figures['exact_match']:.2%}", "of targets, by greedy decoding"),
        ("loss", f"{figures['loss']:.4f}", "nats a token"),
        ("accuracy", f"{figures['accuracy']:.2%}", "of tokens, given the true ones before"),
    )
    print_table(
        "some of them",
        *((visible(row["source"]), "", visible(f"{row['found']}{_verdict(row)}")) for row in rows),
    )
    lengths = (8, data.shape.longest)
    states = [{"length": n, "bytes": model.decoder.state_bytes(n, n)} for n in lengths]
    output.table("state/bytes", states)
    print_table(
        "state of one text, source and target alike",
        *((f"{row['length']} tokens", f"{row['bytes'] / 1000:,.1f} kB", "") for row in states),
    )
    picture = output.file("attention.png")
    draw_reading(model, data.shape, rows[0]["source"], rows[0]["found"], picture)
    output.picture("samples/attention", picture)
    return [f"picture  {shown(picture)}"]


def examples(model: EncoderDecoder, shape: PairShape, pairs: Sequence[Pair]) -> list[Row]:
    """Return sources and targets beside what greedy decoding finds."""
    found = translations(model, shape, [pair.source for pair in pairs], Search(beam=1))
    return [
        {"source": pair.source, "target": pair.target, "found": best.text}
        for pair, (best, *_) in zip(pairs, found, strict=True)
    ]


@torch.inference_mode()
def draw_reading(
    model: EncoderDecoder, shape: PairShape, source: str, target: str, path: Path
) -> None:
    """Write a PNG of what each head read of a source while it wrote a target."""
    tokenizer = shape.tokenizer
    read = tokenizer.encode(source) or [END]
    written = tokenizer.encode(target)
    tokens = (torch.tensor([each], device=model.device) for each in ([START, *written], read))
    weights = model.weights(*tokens)[:, 0].float().cpu().numpy()
    rows, columns = ([tokenizer.decode([token]) for token in each] for each in (written, read))
    draw_weights(weights, [*rows, "end"], columns, path)


def _verdict(row: Row) -> str:
    return "" if row["found"] == row["target"] else f"\nreference: {row['target']}"
