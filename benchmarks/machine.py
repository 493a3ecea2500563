"""Where a figure was measured, and the file that keeps it."""

import json
import platform
from datetime import date
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent.parent / "results"


def describe() -> dict[str, Any]:
    """The hardware and software that a measurement depends on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": date.today().isoformat(),
        "device": gpu or _processor(),
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


def save(name: str, measurement: dict[str, Any]) -> Path:
    """Write `results/<name>.json`, replacing what was measured before."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": describe(), **measurement}, indent=2) + "\n")
    return path
