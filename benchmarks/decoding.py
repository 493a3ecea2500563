"""Tokens a second and bytes of state of translators, by how much was read and written before.

    uv run python -m benchmarks.decoding                     lengths 64 ... 4096, batches 1, 16, 128
    uv run python -m benchmarks.decoding --length 64 --batch 1 --threads 2

A model of Multi30k's sizes, with random weights, has read a source of so many tokens and written as
many; it then writes the next ones, greedily. All methods are this project's own step in PyTorch,
in turn, each round from a fresh copy of the state; medians of the rounds.

    linear           linear attention in the decoder and to the source: a state of one size
    linear_conv      the same with short convolutions, norms and gates in the decoder
    softmax          softmax attention with key-value caches of both sides
    softmax, linear  softmax attention in the decoder, linear attention to the source

The state is that of one sequence, what is kept of the source included.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import thread_count
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of
from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.data.text import START
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import MultiHeadAttention, MultiHeadCrossAttention
from linear_transformers.models import EncoderDecoder, StackState, Transformer

SEED, NUM_TOKENS = 0, 8000
SOFTMAX = "softmax"
LINEAR_ATTENTION = partial(LinearAttention, feature_map=Elu)
PARTS = {"short_convolution": 4, "output_norm": True, "output_gate": "silu"}
# The decoder's mixer, and the attention to the source.
METHODS = {
    "linear": (partial(MultiHeadAttention, attention=LINEAR_ATTENTION), LINEAR_ATTENTION),
    "linear_conv": (
        partial(MultiHeadAttention, attention=LINEAR_ATTENTION, **PARTS),
        LINEAR_ATTENTION,
    ),
    SOFTMAX: (partial(MultiHeadAttention, attention=SoftmaxAttention), SoftmaxAttention),
    "softmax, linear": (partial(MultiHeadAttention, attention=SoftmaxAttention), LINEAR_ATTENTION),
}


def main() -> None:
    options = parse()
    console = Console()
    sizes = f"{options.layers} + {options.layers} layers, model_dim {options.model_dim}"
    measurement = Measurement("decoding-cpu", f"Decoding: {sizes}", device="cpu", seeds=[SEED])
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        for length in options.length:
            for batch in options.batch:
                with thread_count(threads), torch.inference_mode():
                    rows += measured(length, batch, options)
                measurement.save(rows)  # after each: the last ones need much memory
                console.print(table(rows[-len(options.methods) :]))
    console.print(f"written to {measurement.path}", soft_wrap=True)


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--length", type=count, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--batch", type=count, nargs="+", default=[1, 16, 128])
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=METHODS)
    parser.add_argument("--threads", type=count, nargs="+", default=[torch.get_num_threads()])
    parser.add_argument("--layers", type=count, default=4)
    parser.add_argument("--heads", type=count, default=4)
    parser.add_argument("--model-dim", type=count, default=128)
    parser.add_argument("--steps", type=count, default=16, help="tokens that are timed in a round")
    parser.add_argument("--rounds", type=count, default=5)
    return parser.parse_args()


def measured(length: int, batch: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every method after so many tokens, side by side for so many sequences."""
    models = {method: model_of(method, options) for method in options.methods}
    states = {method: state_after(length, model) for method, model in models.items()}
    seconds: dict[str, list[float]] = {method: [] for method in models}
    for _ in range(options.rounds):
        for method, model in models.items():
            fork = torch.zeros(batch, dtype=torch.long)
            state = model.select(states[method], fork)
            seconds[method].append(seconds_of(model, state, batch, options.steps))
            del state  # before the next one is made: caches of 128 sequences are large
    rows = []
    for method, model in models.items():
        token = median(seconds[method])
        row = {
            "threads": torch.get_num_threads(),
            "length": length,
            "batch": batch,
            "method": method,
            "ms_per_step": round(1000 * token, 3),
            "tokens_per_second": round(batch / token, 1),
        }
        if SOFTMAX in seconds:
            pairs = zip(seconds[SOFTMAX], seconds[method], strict=True)
            row["times_softmax"] = round(median(theirs / mine for theirs, mine in pairs), 2)
        row["state_bytes"] = model.decoder.state_bytes(length, length)
        rows.append(row)
    return rows


def model_of(method: str, options: argparse.Namespace) -> EncoderDecoder:
    """Return a model with random weights."""
    torch.manual_seed(SEED)
    mixer, attention = METHODS[method]
    stack: Callable[..., Transformer] = partial(
        Transformer,
        num_layers=options.layers,
        num_heads=options.heads,
        model_dim=options.model_dim,
        positions="added",
        norm="pre",
    )
    encoder = stack(partial(MultiHeadAttention, attention=LINEAR_ATTENTION), causal=False)
    decoder = stack(mixer, cross=partial(MultiHeadCrossAttention, attention=attention))
    return EncoderDecoder(encoder, decoder, NUM_TOKENS).eval()


def state_after(length: int, model: EncoderDecoder) -> StackState:
    """Return the state of one sequence after so many tokens of a source and of a target."""
    generator = torch.Generator().manual_seed(SEED)
    source, target = torch.randint(NUM_TOKENS, (2, 1, length), generator=generator)
    return model.prefill(target, model.init_state(model.summarize(source)))[1]


def seconds_of(model: EncoderDecoder, state: StackState, batch: int, steps: int) -> float:
    """Return the seconds of a step, which writes a token of each sequence."""
    tokens = torch.full((batch,), START)
    scores, state = model.step(tokens, state, in_place=True)  # caches make room here
    start = time.perf_counter()
    for _ in range(steps):
        scores, state = model.step(scores.argmax(-1), state, in_place=True)
    return (time.perf_counter() - start) / steps


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the rows of one case, to be printed."""
    first, *_ = rows
    title = f"after {first['length']} tokens, batch {first['batch']}, threads {first['threads']}"
    printed = Table(*list(first)[3:], title=title)
    for row in rows:
        printed.add_row(*(str(value) for value in list(row.values())[3:]))
    return printed


if __name__ == "__main__":
    main()
