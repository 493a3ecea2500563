"""Record the golden runs anew.

    uv run --group dev python -m tests.golden.make

For a commit that changes what training computes on purpose, and says why.
"""

import json
import tempfile
from pathlib import Path

import torch

from tests.golden.runs import EXPECTED, RUNS, trained


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        recorded = {name: trained(name, Path(folder)) for name in RUNS}
    EXPECTED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
