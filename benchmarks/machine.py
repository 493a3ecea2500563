"""Where a figure was measured, and the file that keeps it."""

import json
import math
import os
import platform
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

COPIED, COPIES = 2**28, 4  # bytes, more than any cache holds; and how often, between two looks
RESULTS = Path(os.environ.get("RESULTS") or Path(__file__).parent.parent / "results")


def describe(device: str) -> dict[str, Any]:
    """The hardware and software that a measurement on a torch device depends on."""
    on_gpu = torch.device(device).type == "cuda"
    return {
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name(device) if on_gpu else _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def earlier(name: str, device: str) -> list[dict[str, Any]]:
    """The rows of `results/<name>.json`, if they were measured on this machine's like."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        return []
    measurement = json.loads(path.read_text())
    here = describe(device)
    alike = all(measurement["machine"].get(key) == here[key] for key in here if key != "date")
    return measurement["rows"] if alike else []


def save(name: str, device: str, measurement: dict[str, Any]) -> Path:
    """Write `results/<name>.json`, replacing what was measured before."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": describe(device), **measurement}, indent=2) + "\n")
    return path


def now(device: str) -> float:
    """Seconds, when all that was asked of the device is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_copy(device: str) -> float:
    """Bytes a second, read and written, of a large copy."""
    source = torch.ones(COPIED // 4, device=device)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(5):
        start = now(device)
        for _ in range(COPIES):
            target.copy_(source)
        best = min(best, (now(device) - start) / COPIES)
    return 2 * COPIED / best
