"""A program in a process of its own, which costs nobody else anything when it fails."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent
# Not an illegal access, which speaks of memory too.
OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|MemoryError|(allocate|enough) memory", re.I)
RAISED = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt)(: |$)")
KILLED = -9  # by the system, when memory runs out


def run_apart(
    command: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[str, str | None]:
    """Run a program from the project's folder.

    Args:
        command: The program and its arguments.
        seconds: The time after which it is killed, in seconds.
        environment: What is changed of the environment.

    Returns:
        What it printed, and why it failed; None if it did not.
    """
    try:
        done = subprocess.run(
            command, cwd=PROJECT, env={**os.environ, **(environment or {})}, capture_output=True,
            text=True, timeout=seconds, check=False,
        )  # fmt: skip
    except OSError as error:
        return "", str(error)
    except subprocess.TimeoutExpired as error:
        printed: Any = error.stdout or b""  # bytes, even of text
        return printed.decode(), f"more than {seconds:.3g} s"
    if done.returncode == 0:
        return done.stdout, None
    lines = (done.stderr or done.stdout).strip().splitlines() or ["killed"]
    # CUDA's errors go on with advice.
    reason = next((line for line in reversed(lines) if RAISED.match(line)), lines[-1])
    if done.returncode == KILLED or OUT_OF_MEMORY.search(reason):
        return done.stdout, "out of memory"
    signal = f"signal {-done.returncode}: " if done.returncode < 0 else ""
    return done.stdout, f"{signal}{reason}"
