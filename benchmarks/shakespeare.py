"""A language model of constant state beside nanoGPT's recipe for CPUs: as long, on the same cores.

    git clone https://github.com/karpathy/nanoGPT
    uv run --group dev python -m benchmarks.shakespeare nanoGPT input.txt
    uv run --group dev python -m benchmarks.shakespeare nanoGPT input.txt --cores 0 --seeds 0 1

`input.txt` is the tiny Shakespeare of char-rnn. Its first nine tenths are trained on; on the last
tenth, which nothing was chosen by, both are judged in nats a character:

    windows    64 characters each, with nothing known of what is before them: as nanoGPT reads
    carried    the whole text at once, with the state carried; nanoGPT cannot

nanoGPT is trained by its own program, with the arguments that its README gives for CPUs, this
project's model by train.py. Seconds are those of the whole processes, with their validations.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.apart import PROJECT
from benchmarks.collect import source_of
from benchmarks.record import Measurement
from benchmarks.usage import parser_of, usable_core
from linear_transformers.pictures.tables import markdown
from linear_transformers.tasks.language_modeling.model import LanguageModel
from linear_transformers.tasks.loading import load

WINDOW, TOGETHER = 64, 64
# From its README, "Baby GPT" on a CPU; seeds are the one thing that it has no argument for.
NANOGPT = (
    "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=20",
    "--log_interval=100", "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4",
    "--n_embd=128", "--max_iters=2000", "--lr_decay_iters=2000", "--dropout=0.0",
)  # fmt: skip
# Chosen inside of what is trained on. The last hundredth of it is validated on; of the last tenth
# not a character is seen.
OURS = (
    "trainer=cpu", "logger=none", "callbacks.samples.n=0", "test=false", "data=text",
    "data.tokens=characters", "data.val_share=0.01", "data.test_share=0.10001", "data.batch_size=8",
    "model=gated", "trainer.max_steps=850", "trainer.val_check_interval=850",
)  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("nanogpt", type=Path, help="a checkout of nanoGPT; it is left as it is")
    parser.add_argument("text", type=Path, help="the tiny Shakespeare, input.txt")
    parser.add_argument(
        "--cores", type=usable_core, nargs="+", default=sorted(os.sched_getaffinity(0))
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--overrides", nargs="+", default=[], help="arguments of train.py, last")
    options = parser.parse_args()
    text = options.text.read_text()
    held_out = text[int(0.9 * len(text)) :]
    torch.set_num_threads(len(options.cores))
    measurement = Measurement(
        "shakespeare-cpu", "Shakespeare, character by character: nats a character",
        device="cpu", seeds=options.seeds,
    )  # fmt: skip
    rows, sources = [], []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as made:
            rows.append(nanogpt(options, Path(made), held_out) | {"seed": seed})
            row, source = ours(options, Path(made), held_out, seed)
            rows.append(row)
            sources.append(source)
        measurement.save(rows, sources=sources)
    print(f"{markdown(rows)}\nwritten to {measurement.path}")


def nanogpt(options: argparse.Namespace, made: Path, held_out: str) -> dict[str, Any]:
    """Train nanoGPT in a copy of its checkout, and judge it."""
    place = made / "nanoGPT"
    shutil.copytree(options.nanogpt, place, ignore=shutil.ignore_patterns(".git"))
    data = place / "data" / "shakespeare_char"
    shutil.copy(options.text, data / "input.txt")
    timed([sys.executable, "prepare.py"], data, options.cores)
    seconds = timed([sys.executable, "train.py", *NANOGPT, "--out_dir=out"], place, options.cores)
    sys.path.insert(0, str(place))
    from model import GPT, GPTConfig  # pyright: ignore[reportMissingImports]  # nanoGPT's

    sys.path.remove(str(place))
    found = torch.load(place / "out" / "ckpt.pt", map_location="cpu", weights_only=False)
    model = GPT(GPTConfig(**found["model_args"]))
    model.load_state_dict(found["model"])
    model.eval()
    characters = sorted({*options.text.read_text()})  # as prepare.py numbers them
    values = torch.tensor([characters.index(character) for character in held_out])
    nats = []
    with torch.inference_mode():
        for x, y in windows(values):
            scores, _ = model(x, y)
            nats.append(F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none"))
    return {
        "model": "nanoGPT",
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(seconds, 1),
        "windows": round(torch.cat(nats).double().mean().item(), 4),
    }


def ours(
    options: argparse.Namespace, made: Path, held_out: str, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train this project's model, and judge it; also return where its figures are from."""
    words = [
        *(sys.executable, "train.py", *OURS, f"data.path={options.text.resolve()}"),
        *(f"seed={seed}", f"paths.runs={made}", "run_id=ours", *options.overrides),
    ]
    seconds = timed(words, PROJECT, options.cores)
    trained = load(made / "ours" / "checkpoints" / "last.ckpt", device="cpu")
    assert isinstance(trained, LanguageModel)
    row = {
        "model": trained.task.description,
        "parameters": sum(p.numel() for p in trained.task.model.parameters()),
        "seconds": round(seconds, 1),
        "windows": round(nats_of_windows(trained, held_out), 4),
        "carried": round(trained.bits_per_byte(held_out) * math.log(2), 4),
        "seed": seed,
    }
    source = source_of(made / "ours")
    source.pop("curves")
    return row, source


@torch.inference_mode()
def nats_of_windows(trained: LanguageModel, text: str) -> float:
    """Return the mean nats of the characters after those of each window, given no others."""
    model, nats = trained.task.model, []
    for x, y in windows(trained.tokens(text)):
        parameters = model(model.with_start(x))[:, 1:]
        nats.append(-trained.task.distribution.log_prob(parameters, y).flatten())
    return torch.cat(nats).double().mean().item()


def windows(values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return batches of windows [b, 64], one after the other, and the values that follow each."""
    count = (len(values) - 1) // WINDOW
    parts = (values[shift : shift + count * WINDOW].view(count, WINDOW) for shift in (0, 1))
    return [*zip(*(part.split(TOGETHER) for part in parts), strict=True)]


def timed(command: list[str], folder: Path, cores: list[int]) -> float:
    """Run a command on some cores, and return the seconds that it took."""
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": str(len(cores))},
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
