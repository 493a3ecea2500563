"""What steps a trained model: which code, in which precision."""

import torch

from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.sampling import (
    CompiledDecoder,
    Decoder,
    GraphedDecoder,
    Recomputed,
    round_weights,
)

KERNELS = ("auto", "cpp", "triton", "recurrent")
PRECISIONS = ("float32", "bfloat16", "float16", "float64", "int8")
COMPILED_PRECISIONS = ("float32", "bfloat16", "int8")


def decoder_of(
    model: AutoregressiveTransformer, *, kernel: str, precision: str, cache: bool
) -> tuple[Decoder, str]:
    """What generates, and what it is called in the record. The model takes on the precision.

    Args:
        model: In float32 and `eval()` mode.
        kernel: `cpp` is a compiled call a step, on CPUs; `triton` a captured graph a step, on
            GPUs; `recurrent` is the model's own step, in PyTorch; `auto` is the first where
            there is one, else the last.
        precision: Of the weights. `cpp` computes in float32; what else steps has activations in
            the same type, sums of linear attention and the head in float32.
        cache: Whether there is a state. Without, each step runs `forward` on everything.

    Raises:
        ValueError: An unknown choice, or one that cannot be met here.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel={kernel} is unknown. Choose one of {list(KERNELS)}.")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision} is unknown. Choose one of {list(PRECISIONS)}.")
    reason = _no_compiled_step(model, kernel, precision, cache)
    if reason is None:
        round_weights(model, precision)
        return CompiledDecoder(model, precision), "cpp"
    for name, asked in (("kernel=cpp", kernel == "cpp"), ("precision=int8", precision == "int8")):
        if asked:
            raise ValueError(f"{name} needs the compiled step, and {reason}.")
    if kernel == "triton" and not cache:
        raise ValueError("kernel=triton has a state, and cache=false was asked for.")
    _convert(model, getattr(torch, precision))
    if kernel == "triton":
        if reason := GraphedDecoder.unavailable(model):
            raise ValueError(f"kernel=triton cannot run: {reason}. Use kernel=auto.")
        return GraphedDecoder(model), "triton"
    if cache:
        return model, "recurrent"
    whole = model.stack.kernel_on(model.device)
    return Recomputed(model), f"{whole}, recomputed for each value"


def _no_compiled_step(
    model: AutoregressiveTransformer, kernel: str, precision: str, cache: bool
) -> str | None:
    if kernel in ("triton", "recurrent"):
        return f"kernel={kernel} was asked for"
    if not cache:
        return "cache=false was asked for"
    if precision not in COMPILED_PRECISIONS:
        return f"it has no precision={precision}: choose one of {list(COMPILED_PRECISIONS)}"
    return CompiledDecoder.unavailable(model)


def _convert(model: AutoregressiveTransformer, dtype: torch.dtype) -> None:
    model.to(dtype)
    if dtype.itemsize < 4:
        # Means in bfloat16 are coarser than the gap between 256 levels.
        model.stack.norm.float()
        model.head.float()
