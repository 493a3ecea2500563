"""Run the programs as a user does, and read what they leave."""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra._internal.hydra import Hydra

from linear_transformers.callbacks import performance
from linear_transformers.callbacks.performance import training_flops_per_token
from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.sampling import step_milliseconds
from linear_transformers.tasks import costs
from linear_transformers.tasks.base import Task
from linear_transformers.training.peaks import peak_flops
from tests.conftest import PROJECT, TINY

# A whole run of a tiny model on a CPU, in one step.
QUICK = (*TINY, "trainer=cpu", "debug=step")


def run(program: str, *arguments: str) -> str:
    """Run a program in this process: in a test, with shapes checked and
    warnings as errors. Hydra composes twice, once of them to see whether a configuration sets
    hydra.mode: here none does. What a run measures of itself has tests of its own: here it takes
    little time."""
    printed = io.StringIO()
    main = importlib.import_module(program).main
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(PROJECT / f"{program}.py"), *arguments])
        patch.setattr(Hydra, "get_mode", lambda *_, **__: None)
        patch.setattr(performance, "training_flops_per_token", _flops_per_token)
        patch.setattr(performance, "peak_flops", _peak_flops)
        patch.setattr(costs, "step_milliseconds", partial(step_milliseconds, steps=1, rounds=1))
        main()
    return printed.getvalue()


_peak_flops = cache(peak_flops)
_counted: dict[str, float] = {}


def _flops_per_token(task: Task) -> float:
    """The same, once for a model."""
    key = f"{task.shape} {task.model} {[p.shape for p in task.model.parameters()]}"
    if key not in _counted:
        _counted[key] = training_flops_per_token(task)
    return _counted[key]


def complaint(program: str, *arguments: str) -> str:
    """Run a program that must fail with one line; that line."""
    with pytest.raises(SystemExit) as stopped:
        run(program, *arguments)
    message = str(stopped.value)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def run_apart(program: str, *arguments: str, cwd: Path = PROJECT) -> str:
    """Run a program in a process of its own, as from a shell."""
    ours = ("LINEAR_", "HYDRA_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    outcome = subprocess.run(
        [sys.executable, PROJECT / f"{program}.py", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout + outcome.stderr


def start(program: str, *arguments: str, **options: Any) -> subprocess.Popen:
    """Start a program as from a shell; its output comes by `communicate`."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, PROJECT / f"{program}.py", *arguments], **(piped | options)
    )


def join(processes: list[subprocess.Popen], seconds: float = 120) -> list[str]:
    """Wait for processes that wait for each other; what each has printed. One that fails ends
    the others."""
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes):
        if time.monotonic() > deadline or any(process.poll() for process in processes):
            time.sleep(1)  # others may be about to say why
            for process in processes:
                process.kill()
        time.sleep(0.05)
    outputs = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    return outputs


def check_same_bits(run_directory: Path, expected: Path) -> dict[str, Any]:
    """Check that a run ended at the step and with the weights of another; its last checkpoint."""
    ours, theirs = (read_checkpoint(d / "checkpoints/last.ckpt") for d in (run_directory, expected))
    assert ours["global_step"] == theirs["global_step"]
    torch.testing.assert_close(ours["state_dict"], theirs["state_dict"], rtol=0, atol=0)
    return ours


def forge(checkpoint: dict[str, Any], path: Path) -> None:
    """Save a checkpoint whose configuration was changed, as code without its digest did."""
    torch.save({name: part for name, part in checkpoint.items() if name != "digest"}, path)


def metrics(run_directory: Path) -> list[dict]:
    """The rows of a run's record."""
    lines = (run_directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def figures(run_directory: Path, name: str) -> list[float]:
    """One metric of a run, in the order it was recorded."""
    return [row[name] for row in metrics(run_directory) if name in row]


def curves(run_directory: Path, *names: str) -> dict[str, list[float]]:
    """Several metrics of a run, each in the order it was recorded."""
    return {name: figures(run_directory, name) for name in names}


def wandb_runs(folder: Path) -> list[Path]:
    """The logs of W&B runs below a folder, oldest first."""
    return sorted(folder.rglob("wandb/*run-*/*.wandb"), key=lambda path: path.parent.name)


def read_back(log: Path) -> dict[str, Any]:
    """A W&B run as W&B's own program reads it."""
    program = Path(sys.executable).with_name("wandb")
    outcome = subprocess.run(
        [program, "leet", "inspect", "--json", log], capture_output=True, text=True, check=True
    )
    records = [json.loads(line) for line in outcome.stdout.splitlines()]
    of = {kind: [r[kind] for r in records if r["type"] == kind] for kind in
          ("run", "history", "summary", "metric", "exit", "files", "artifact")}  # fmt: skip
    return {
        "run": of["run"][0],
        "config": of["run"][0]["config"]["update"],
        "history": [row["item"] for row in of["history"]],
        "summary": {k: v for row in of["summary"] for k, v in row["update"].items()},
        "metrics": of["metric"],
        "exit": of["exit"],
        "artifacts": [a for a in of["artifact"] if a["type"] == "model"],
    }


def every(read: dict[str, Any], name: str) -> list[Any]:
    """One metric of a run that was read back."""
    return [row[name] for row in read["history"] if name in row]
