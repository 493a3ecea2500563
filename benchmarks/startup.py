"""Seconds until a program has done the least it can do, beside `import torch` alone.

    uv run --group dev python -m benchmarks.startup
    uv run --group dev python -m benchmarks.startup --rounds 9 --bytecode compiled

Each figure is the median of whole processes, the cases taking turns. `none` is the first start
after an installation: no bytecode is there, of torch's neither.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.apart import PROJECT
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of
from linear_transformers.pictures.tables import markdown

TORCH = "import torch"
GONE = "a path that is not there"  # the one case that is to fail
BYTECODE = ("compiled", "none")
TINY = ("trainer=cpu", "logger=none", "debug=step", "test=false", "model.num_layers=2",
        "model.num_heads=2", "model.model_dim=16")  # fmt: skip
SPEECH = ("data=espeak", "data.num_train=8", "data.num_val=3", "data.num_test=3",
          "data.batch_frames=900", "model.causal=true")  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--bytecode", nargs="+", default=[*BYTECODE], choices=BYTECODE)
    options = parser.parse_args()
    measurement = Measurement("startup", "Starting", device="cpu", seeds=[0])
    with tempfile.TemporaryDirectory() as folder:
        cases = prepared(Path(folder))
        rows = [row for kind in options.bytecode for row in measured(cases, kind, options.rounds)]
    path = measurement.save(rows)
    Console().print(f"{markdown(rows)}\nwritten to {path}", soft_wrap=True)


def prepared(folder: Path) -> dict[str, list[str]]:
    """Train the smallest models, and return the command line of each case."""
    here = (f"paths.runs={folder}/runs", f"paths.data={folder}/data")
    python = sys.executable
    for name, choices in (("images", ()), ("speech", SPEECH)):
        line = [python, "train.py", *TINY, *choices, *here, f"run_id={name}"]
        subprocess.run(line, cwd=PROJECT, check=True, capture_output=True)
    recording = next((folder / "data").rglob("*.flac"))
    run = f"{folder}/runs/images"
    load = f"import linear_transformers as lt; lt.load({run!r})"
    sample = ["sample.py", f"ckpt={run}", f"out={folder}/out", "overwrite=true", "gif=false"]
    return {
        TORCH: [python, "-c", TORCH],
        "train.py --help": [python, "train.py", "--help"],
        GONE: [python, "train.py", "data=arrays", "data.path=gone.npz"],
        "lt.load": [python, "-c", load],
        "sample.py, one image": [python, *sample, "images=1"],
        "transcribe.py, one recording": [
            python, "transcribe.py", f"ckpt={folder}/runs/speech", f"audio={recording}",
        ],
        "train.py, one step": [python, "train.py", *TINY, *here],
    }  # fmt: skip


def measured(cases: dict[str, list[str]], bytecode: str, rounds: int) -> list[dict[str, Any]]:
    """Return the median seconds of each case.

    Args:
        cases: The command lines.
        bytecode: `compiled`, or `none`: whether Python finds compiled modules.
        rounds: The number of times that each case is run; one more comes before.

    Raises:
        SystemExit: A case failed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as nothing:
        if bytecode == "none":
            environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": nothing}
        for number in range(rounds + 1):
            for name, line in cases.items():
                start = time.perf_counter()
                done = subprocess.run(
                    line, cwd=PROJECT, env=environment, capture_output=True, text=True
                )
                if number:  # the first round fills caches
                    seconds[name].append(time.perf_counter() - start)
                if done.returncode and name != GONE:
                    reason = done.stderr.strip().rpartition("\n")[2]
                    raise SystemExit(f"error: {name} failed: {reason}")
    torch = median(seconds[TORCH])
    return [
        {
            "bytecode": bytecode,
            "case": name,
            "seconds": round(median(times), 2),
            "over_torch": round(median(times) - torch, 2),
        }
        for name, times in seconds.items()
    ]


if __name__ == "__main__":
    main()
