"""Take a checkpoint to pieces that travel, and put it together again.

    python -m benchmarks.pieces split CHECKPOINT FOLDER            weights alone: enough to sample
    python -m benchmarks.pieces split CHECKPOINT FOLDER --moments  the rest: to train on
    python -m benchmarks.pieces join FOLDER CHECKPOINT

A piece is 15 MB at most. With the weights a checkpoint is whole to every program but train.py;
with the optimizer's moments beside them it is what it was.
"""

import io
from pathlib import Path
from typing import Any

import torch

from benchmarks.usage import parser_of, refusing
from linear_transformers.files import replacing
from linear_transformers.runs.checkpoint import read_checkpoint

SIZE = 15_000_000
MOMENTS, STEP = "optimizer_states", "global_step"
PARTS = ("weights", "moments")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("action", choices=["split", "join"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--moments", action="store_true", help="split those, not the weights")
    options = parser.parse_args()
    if options.action == "join":
        join(options.source, options.target)
        print(f"joined   {options.target}")
        return
    with refusing():
        paths = split(options.source, options.target, PARTS[options.moments])
    for path in paths:
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")


def split(checkpoint: Path, folder: Path, part: str) -> list[Path]:
    """Write a part of a checkpoint as pieces, and return their paths."""
    content = read_checkpoint(checkpoint)
    moments = content.pop(MOMENTS, [])
    written = io.BytesIO()
    beside = {MOMENTS: moments, STEP: content[STEP]}
    torch.save(beside if part == "moments" else content, written)
    data = written.getvalue()
    pieces = [data[start : start + SIZE] for start in range(0, len(data), SIZE)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{part}-{i:02d}-of-{len(pieces):02d}" for i in range(len(pieces))]
    for path, piece in zip(paths, pieces, strict=True):
        path.write_bytes(piece)
    return paths


def join(folder: Path, checkpoint: Path) -> None:
    """Write the checkpoint whose pieces are in a folder.

    Raises:
        SystemExit: There are no weights, a piece is missing, the weights and the moments are those
            of two steps, or the checkpoint is there already.
    """
    if checkpoint.exists():
        raise SystemExit(f"error: {checkpoint} exists already. Choose another name.")
    content: dict[str, Any] = {MOMENTS: []}
    for part in PARTS:
        pieces = sorted(folder.glob(f"{part}-*-of-*"))
        if not pieces and part == "weights":
            raise SystemExit(f"error: {folder} holds no weights-00-of-... of a checkpoint.")
        if pieces and len(pieces) != int(pieces[0].name.rpartition("-")[2]):
            raise SystemExit(f"error: {folder} holds {len(pieces)} pieces like {pieces[0].name}.")
        if pieces:
            data = b"".join(piece.read_bytes() for piece in pieces)
            read = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            if content.get(STEP, read[STEP]) != read[STEP]:
                raise SystemExit(
                    f"error: {folder} holds weights of step {content[STEP]} and moments of step "
                    f"{read[STEP]}. Split both from one checkpoint."
                )
            content |= read
    with replacing(checkpoint) as partial:
        torch.save(content, partial)


if __name__ == "__main__":
    main()
