"""Retention, gated linear attention and the delta rule forward and backward, side by side.

    uv run --extra fla python -m benchmarks.fast_weights
    uv run --extra fla python -m benchmarks.fast_weights --shape 4x784 --heads 4 --head-dim 64

This measures the operators alone, in float32, from queries, keys, values and gates to outputs.
Beside the kernel are its definition in PyTorch, chunk by chunk in segments that fit the cache
(`chunks`), what that was before, all chunks of a sequence at once, of 64 positions (`whole`; of 16
where each feature decays), and flash-linear-attention's reference in PyTorch, which runs on a CPU:
in chunks where there is one, else the definition. All take turns in one process; medians.
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import thread_count
from benchmarks.operators import SEED, Case, Kernel, measure, shape
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of
from linear_transformers.kernels.fast_weights import decayed, delta
from linear_transformers.ops import decayed as decayed_chunks
from linear_transformers.ops import delta as delta_chunks
from linear_transformers.pictures.tables import markdown
from linear_transformers.training.memory import keep_freed_memory

Row = dict[str, Any]
OURS, CHUNKS, WHOLE, FLA = "ours", "chunks", "whole", "fla"
REFERENCES = {
    "retention": ("simple_gla", "naive_chunk_simple_gla"),
    "gated": ("gla", "naive_recurrent_gla"),
    "delta": ("delta_rule", "delta_rule_chunkwise"),
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--shape", type=shape, default="4x3072", help="batch x length")
    parser.add_argument("--heads", type=count, default=8)
    parser.add_argument("--head-dim", type=count, default=32)
    parser.add_argument("--threads", type=count, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=count, default=5)
    options = parser.parse_args()
    options.device = "cpu"
    keep_freed_memory()
    title = f"Fast weights on a CPU: {options.heads} heads of {options.head_dim}"
    measurement = Measurement("fast-weights-cpu", title, device="cpu", seeds=[SEED])
    rows: list[Row] = []
    for threads in options.threads:
        case = Case(options.shape, "float32", threads)
        for operator in REFERENCES:
            kernels = kernels_of(operator, case, options)
            with thread_count(threads):
                times = measure(kernels, case, options)
            rows += compared(operator, case, times)
            measurement.save(rows)
    print(markdown(rows))
    print(f"written to {measurement.path}")


def kernels_of(operator: str, case: Case, options: argparse.Namespace) -> dict[str, Kernel]:
    """Return an operator's implementations, as functions of q, k and v; gates are fixed."""
    batch, length = case.about["batch"], case.about["length"]
    size = (batch, length, options.heads, options.head_dim)
    uniform = torch.rand(size, generator=torch.Generator().manual_seed(SEED))
    if operator == "delta":
        strength, none = uniform[..., :1], torch.zeros(*size[:3], 1)
        return {
            OURS: lambda q, k, v: delta(q, unit(k), v, strength, none)[0],
            CHUNKS: lambda q, k, v: delta_chunks.delta(q, unit(k), v, strength, none)[0],
            WHOLE: lambda q, k, v: delta_chunks.segment(
                q, unit(k), v, strength, none, state=None, chunk_size=64
            )[0],
            FLA: heads_first(reference(operator), strength[..., 0]),
        }
    if operator == "gated":
        decay, before = uniform.log() / 16, 16
    else:
        of_heads = torch.log1p(-torch.exp2(-5.0 - torch.arange(options.heads)))
        decay, before = of_heads.expand(size[:3]).unsqueeze(-1), 64
    theirs, gates = reference(operator), decay if operator == "gated" else decay[..., 0]
    return {
        OURS: lambda q, k, v: decayed(q, k, v, decay)[0],
        CHUNKS: lambda q, k, v: decayed_chunks.decayed(q, k, v, decay)[0],
        WHOLE: lambda q, k, v: decayed_chunks.segment(
            q, k, v, decay, state=None, chunk_size=before
        )[0],
        FLA: lambda q, k, v: theirs(q, k, v, gates)[0],
    }


def reference(operator: str) -> Callable[..., tuple[Tensor, Any]]:
    """Return flash-linear-attention's reference of an operator."""
    module, name = REFERENCES[operator]
    return getattr(import_module(f"fla.ops.{module}.naive"), name)


def heads_first(theirs: Callable[..., tuple[Tensor, Any]], strength: Tensor) -> Kernel:
    """Return the delta rule of operands [b, h, t, d] as a function of [b, t, h, d]."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v, beta = (x.transpose(1, 2) for x in (q, unit(k), v, strength))
        return theirs(q, k, v, beta)[0].transpose(1, 2)

    return run


def unit(k: Tensor) -> Tensor:
    return torch.nn.functional.normalize(k, dim=-1)


def compared(operator: str, case: Case, times: dict[str, dict[str, float]]) -> list[Row]:
    """Return a row for each implementation, with how many times as fast ours is."""

    def both(name: str) -> float:
        return sum(times[name].values())

    return [
        {
            **case.about,
            "operator": operator,
            "implementation": name,
            **times[name],
            "ours_times": float(f"{both(name) / both(OURS):.3g}"),
        }
        for name in times
    ]


if __name__ == "__main__":
    main()
