"""What a device of several does with its pieces: started by `test_pieces`.

python -m tests.mixers.pieces RANK FOLDER
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from benchmarks.sequence_parallel import counted
from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.models import Transformer
from linear_transformers.ops.pieces import Piece, Place
from tests.mixers.test_contract import ALL

DEVICES = (2, 3, 4)
BATCH, HEADS, WIDTH = 2, 3, 24
# Of 6 positions, pieces are shorter than what a short convolution remembers; of the others, uneven.
LENGTHS = (6, 37, 148)
DTYPES = {torch.float64: 1e-12, torch.float32: 1e-5}
MIXERS = [name for name in ALL if ALL[name](WIDTH, HEADS).divisible]


def stack(**options) -> Transformer:
    attention = partial(LinearAttention, feature_map=Elu)
    mixer = partial(MultiHeadAttention, attention=attention, short_convolution=4, rotary=True)
    sizes = {"num_layers": 2, "num_heads": HEADS, "model_dim": WIDTH, "max_length": LENGTHS[-1]}
    return Transformer(mixer, **sizes, **options)


STACKS = {
    "a stack with dropout": partial(stack, dropout=0.3, positions="learned"),
    "a stack that recomputes": partial(
        stack, dropout=0.3, positions="added", activation_checkpointing=True
    ),
}
CASES = [
    (name, length, dtype)
    for name in (*MIXERS, *STACKS)
    for length in LENGTHS
    for dtype in DTYPES
    if length == LENGTHS[1] or dtype == torch.float64
]


def build(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    module = STACKS[name]() if name in STACKS else ALL[name](WIDTH, HEADS)
    if name in STACKS:
        module.draws.set(3, 5, 7)
    return module.to(dtype).train()


def results(module: nn.Module, length: int, piece: Piece | None = None) -> dict[str, Tensor]:
    """The outputs of all positions or of a piece, and the gradients in a random direction."""
    dtype = next(module.parameters()).dtype
    random = torch.Generator().manual_seed(length)
    x, direction = (
        torch.randn(BATCH, length, WIDTH, generator=random, dtype=torch.float64).to(dtype)
        for _ in range(2)
    )
    if piece is not None:
        x, direction = piece.of(x), piece.of(direction)
    x.requires_grad_()
    outputs = module(x, piece=piece)
    (outputs * direction).sum().backward()
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {"outputs": outputs.detach(), "x": x.grad, **gradients}


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    sent = counted()
    for devices in DEVICES:
        if rank >= devices:
            continue
        store = distributed.FileStore(str(folder / f"store-{devices}"), devices)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=devices)
        found = {}
        for name, length, dtype in CASES:
            sent.clear()
            piece = Place(rank, devices).piece(length)
            made = results(build(name, dtype), length, piece)
            found[name, length, dtype] = made, sum(sent)
        torch.save(found, folder / f"{devices}-{rank}.pt")
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
