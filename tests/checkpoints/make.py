"""Train the checkpoints that are not there yet, and record what the programs make of all.

    uv run python -m tests.checkpoints.make

Those in `format-1` were trained at commit bc2b2ad. Such a checkpoint cannot be made again once
the code writes another format, so none is ever written over. `expected.json` is: run this in a
commit that changes what old checkpoints do on purpose, and says why.
"""

import json
import lzma
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.checkpoints.cases import (
    CASES,
    EPOCHS,
    FOLDER,
    Place,
    continued,
    heard,
    hearings_of,
    jobs_of,
    judged,
    packed,
    sampled,
    train,
    unpack,
)

# Checkpoints hold where they were made: the same place for all, and nobody's home.
WORKSHOP = Path(tempfile.gettempdir()) / "linear-transformers"


def make(name: str, place: Place) -> None:
    """Train a case's checkpoint, and keep it compressed."""
    train(name, place, f"run_id={name}", f"trainer.max_epochs={EPOCHS}", "test=false")
    written = (place.runs / name / "checkpoints/last.ckpt").read_bytes()
    packed(name).write_bytes(lzma.compress(written, preset=9 | lzma.PRESET_EXTREME))


def behaviour(name: str, place: Place) -> dict[str, Any]:
    """What the programs make of a case's checkpoint."""
    unpack(name, place)
    return {
        **{job: sampled(name, place, job) for job in jobs_of(name)},
        **{job: heard(name, place, job) for job in hearings_of(name)},
        "judged": judged(name, place),
        "continued": continued(name, place),
    }


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(WORKSHOP, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    for name in CASES:
        if not packed(name).exists():
            make(name, Place(WORKSHOP / "runs", WORKSHOP / "data"))
    later = Place(WORKSHOP / "later", WORKSHOP / "data")
    recorded = {name: behaviour(name, later) for name in CASES}
    (FOLDER / "expected.json").write_text(json.dumps(recorded, indent=1) + "\n")
    shutil.rmtree(WORKSHOP)


if __name__ == "__main__":
    main()
