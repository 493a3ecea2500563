"""Tokens a second, and resident memory, while one text of 100,000 tokens is generated.

    uv run --group dev python -m benchmarks.generation
    uv run --group dev python -m benchmarks.generation --tokens 20000 --methods linear softmax

Models of data=text's sizes with random weights, each in a process of its own, by the stepper that
`sample.py` chooses: compiled where it can run, else PyTorch's. A rate is of the tokens since the
row before. A method that has taken too long is stopped, and has fewer rows.

    linear         linear attention: a state of one size
    linear_conv    the same with a short convolution, a norm and a gate
    gated          gated linear attention, whose state forgets
    softmax        softmax attention with its key-value cache
    window         softmax attention to the last 128 tokens
"""

import argparse
import json
import os
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.apart import run_apart
from benchmarks.plots import plot
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of
from linear_transformers.config.choices import checked_choice
from linear_transformers.config.folder import Configurations
from linear_transformers.data.text import TextShape
from linear_transformers.jobs.composition import composed
from linear_transformers.pictures.tables import markdown
from linear_transformers.sampling import generate, stepper_of
from linear_transformers.tasks import LanguageModeling
from linear_transformers.tasks.loading import build_task

SEED = 0
METHODS = ("linear", "linear_conv", "gated", "softmax", "window")
ROWS = 20
Row = dict[str, Any]


def main() -> None:
    options = parse()
    if options.method is not None:
        measure(options.method, options)
        return
    title = "Generating a text: tokens a second and memory by how many there are"
    measurement = Measurement("generation-cpu", title, device="cpu", seeds=[SEED])
    rows: list[Row] = []
    for method in options.methods:
        command = [sys.executable, "-m", "benchmarks.generation", "--method", method]
        command += ["--tokens", str(options.tokens), "--seconds", str(options.seconds)]
        printed, failure = run_apart(command, seconds=2 * options.seconds + 60)
        if failure is not None:
            raise SystemExit(f"error: {method}: {failure}")
        rows += [json.loads(line) for line in printed.splitlines()]
        measurement.save(rows)  # after each: softmax takes long
        print(markdown(rows[-1:]), flush=True)
    path = measurement.path
    print(f"{path}\n{picture(rows, path.with_suffix('.png'))}")


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=count, default=100_000)
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=METHODS)
    parser.add_argument("--seconds", type=float, default=240, help="of a method, at most")
    parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(method: str, options: argparse.Namespace) -> None:
    """Print a row of JSON after each twentieth of the tokens, or after each token."""
    task = task_of(method)
    stepper = stepper_of(task.model)
    start = torch.zeros(0, dtype=torch.long)
    sample = task.distribution.sample
    tokens = generate(stepper, task.distribution, start, sample=sample, n=1, seed=SEED)
    part = max(1, options.tokens // ROWS)
    for _ in islice(tokens, part // 2):
        pass  # what is compiled or allocated at first is no rate
    begin = time.perf_counter()
    for done in range(part, options.tokens + 1, part):
        before = time.perf_counter()
        for _ in islice(tokens, part):
            pass
        seconds = time.perf_counter() - before
        row = {
            "model": method,
            "stepper": stepper.name,
            "tokens": done,
            "tokens_per_second": round(part / seconds, 1),
            "resident_megabytes": round(resident() / 1e6, 1),
            "state_kilobytes": round(task.model.stack.state_bytes(done) / 1e3, 1),
        }
        print(json.dumps(row), flush=True)
        if time.perf_counter() - begin > options.seconds:
            return


def task_of(method: str) -> LanguageModeling:
    """Return a model of bytes with random weights, as data=text proposes it."""
    torch.manual_seed(SEED)
    conf = Configurations.of("train")
    config = composed(conf, "data=text", f"model={method}", "data.path=unread")
    chosen, model = (checked_choice(config[name], name, object) for name in ("task", "model"))
    task = build_task(chosen, model, TextShape(256, "bytes", ""))
    assert isinstance(task, LanguageModeling)
    task.model.eval()
    return task


def resident() -> int:
    """Return the bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def picture(rows: list[Row], path: Path) -> Path:
    """Plot the rates of each method, and return the path."""
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        curves.setdefault(row["model"], {})[row["tokens"]] = row["tokens_per_second"]
    return plot(curves, path, x_label="tokens so far", y_label="tokens a second")


if __name__ == "__main__":
    main()
