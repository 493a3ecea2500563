"""A trained model as one HTML page that draws by itself: no server, no library, no network.

The page holds the weights, what JavaScript computes a step with (`page/engine.js`), and a user
interface: a digit is completed while one draws it, or a text goes on while one reads it. The
blocks' matrices are in int8, as `kernels.rounded` rounds them; all else is in float32.
"""

import base64
import html
import json
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linear_transformers import kernels
from linear_transformers.data.images import ImageShape
from linear_transformers.data.text import TextShape
from linear_transformers.distributions import Categorical, LogisticMixture, ValueDistribution
from linear_transformers.kernels.cpp_step import Affine, Norm, StepBlock, StepParts
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.sampling.compiled import not_in_parts, parts_of

ASSETS = Path(__file__).with_name("page")
TOKENS = ("bytes", "characters")
CHANNELS = (1, 3)
KINDS = ({"linear"}, {"delta"})  # of `StepMixer.attention`, in all layers
MATRICES = ("project_in", "project_out", "up", "down")
NORMS = ("mixer_norm", "feedforward_norm")
ALIGNMENT = 4  # bytes; a browser reads float32 at their multiples only


def page_of(
    model: AutoregressiveTransformer,
    distribution: ValueDistribution,
    shape: ImageShape | TextShape,
    *,
    title: str,
    about: str,
    examples: np.ndarray | None = None,
) -> str:
    """Return a page, of about a byte for each weight and a third more.

    Args:
        model: The model.
        distribution: The distribution of a value.
        shape: The shape of the images, or how texts become tokens.
        title: The heading.
        about: The text of the footer: where the model is from, and how good it is.
        examples: Images [n, height, width, channels] to begin with; None is none.

    Raises:
        ValueError: The page's arithmetic has no form of the model, its tokens or its images; or
            the examples have another shape.
    """
    if reason := _unavailable(model, distribution, shape):
        raise ValueError(f"html= cannot show this model: {reason}.")
    parts = parts_of(model)
    table, weights = _packed(_tensors(model, parts))
    described = {
        "options": parts.options._asdict() | parts.blocks[0].mixer._asdict(),
        "start_token": model.start_token,
        "positions": _positions(model),
        "distribution": _distribution(distribution),
        "shape": _shape(shape),
        "examples": [] if examples is None else _examples(examples, shape),
        "tensors": table,
    }
    kind = "images" if isinstance(shape, ImageShape) else "texts"
    scripts = ("engine.js", "common.js", f"{kind}.js")
    return Template(_asset("template.html")).substitute(
        title=html.escape(title),
        about=html.escape(about),
        style=_asset("style.css"),
        interface=_asset(f"{kind}.html"),
        # No text in it may end the element that it stands in.
        model=json.dumps(described, separators=(",", ":")).replace("<", "\\u003c"),
        weights=base64.b64encode(weights).decode(),
        script="\n".join(map(_asset, scripts)),
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _unavailable(
    model: AutoregressiveTransformer, distribution: ValueDistribution, shape: Any
) -> str | None:
    """Return why there is no page of a model, and what to do; or None."""
    stack, others = model.stack, "Train one with model=linear, linear_conv, delta or gated_delta"
    if not stack.constant_state:
        return (
            "a page is for models of constant state, and that of "
            f"{stack.mixer_name} grows with the length. {others}"
        )
    if reason := not_in_parts(model):
        return f"a page has the step of stepper=compiled, and {reason}. {others}"
    blocks = parts_of(model).blocks
    if {block.mixer.attention for block in blocks} not in KINDS:
        return (
            "a page computes linear attention or the delta rule, in all layers, and the model has "
            f"{stack.mixer_name}. {others}"
        )
    if len({_form(block) for block in blocks}) > 1:
        return f"a page computes all layers alike, and those of the model differ. {others}"
    if not isinstance(distribution, Categorical | LogisticMixture):
        return (
            "a page draws from Categorical and LogisticMixture, and it has a "
            f"{type(distribution).__name__}. Train one with either head"
        )
    if isinstance(shape, TextShape):
        if shape.tokens not in TOKENS:
            return (
                f"its data.tokens={shape.tokens}, and a page reads {' and '.join(TOKENS)}. "
                "Train one with data.tokens=bytes"
            )
        return None
    if not isinstance(shape, ImageShape):
        return f"a page is of images or texts, and its data are a {type(shape).__name__}"
    if shape.channels not in CHANNELS:
        return (
            f"its images have {shape.channels} channels, and a page shows 1 or 3. "
            "Train one with images in grey or RGB"
        )
    return None


def _form(block: StepBlock) -> tuple[Any, ...]:
    """Return what the page's engine takes of all layers from the first one."""
    weights = [getattr(block, matrix).weight for matrix in MATRICES]
    parts = [*weights, block.taps, block.output_norm, block.decay_rate]
    return (block.mixer, *(None if part is None else part.shape for part in parts))


def _tensors(model: AutoregressiveTransformer, parts: StepParts) -> dict[str, Tensor]:
    """Return what a step reads, by name: levels of int8 and their scales, and float32."""
    tables = enumerate(_position_tables(model))
    tensors = {"tokens": model.tokens.weight} | {f"positions.{i}": table for i, table in tables}
    for i, block in enumerate(parts.blocks):
        name = f"blocks.{i}"
        for matrix in MATRICES:
            tensors |= _rounded(f"{name}.{matrix}", getattr(block, matrix))
        for norm in NORMS:
            tensors |= _norm(f"{name}.{norm}", getattr(block, norm))
        for part in ("taps", "output_norm", "decay_rate"):
            if (weight := getattr(block, part)) is not None:
                tensors[f"{name}.{part}"] = weight
    tensors |= _norm("norm", parts.norm)
    return tensors | {"head.weight": parts.head.weight, "head.bias": parts.head.bias}


def _rounded(name: str, affine: Affine) -> dict[str, Tensor]:
    levels, scale = kernels.levels(affine.weight)
    return {f"{name}.levels": levels, f"{name}.scale": scale, f"{name}.bias": affine.bias}


def _norm(name: str, norm: Norm) -> dict[str, Tensor]:
    parts = norm._asdict().items()
    return {f"{name}.{part}": weight for part, weight in parts if weight is not None}


def _packed(tensors: dict[str, Tensor]) -> tuple[dict[str, Any], bytes]:
    """Return where each tensor is, and all of them, little-endian."""
    table, data = {}, bytearray()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu()
        kind = "<i1" if tensor.dtype == torch.int8 else "<f4"
        data.extend(bytes(-len(data) % ALIGNMENT))
        table[name] = {"offset": len(data), "shape": list(tensor.shape)}
        data.extend(tensor.numpy().astype(kind).tobytes())
    return table, bytes(data)


def _position_tables(model: AutoregressiveTransformer) -> list[Tensor]:
    """Return the learned tables of positions, one for each axis."""
    positions = model.stack.positions
    if positions.kind == "learned":
        return [positions.table]
    return [*positions.tables] if positions.kind == "axial" else []


def _positions(model: AutoregressiveTransformer) -> dict[str, Any]:
    positions, axes = model.stack.positions, [len(table) for table in _position_tables(model)]
    return {"kind": positions.kind, "max_length": positions.max_length, "axes": axes}


def _distribution(distribution: ValueDistribution) -> dict[str, Any]:
    if isinstance(distribution, LogisticMixture):
        return {
            "kind": "mixture",
            "num_values": distribution.num_values,
            "min_log_scale": distribution.min_log_scale,
        }
    return {"kind": "categorical", "num_values": distribution.num_values}


def _shape(shape: ImageShape | TextShape) -> dict[str, Any]:
    if isinstance(shape, TextShape):
        return {"tokens": shape.tokens, "vocabulary": list(shape.vocabulary)}
    return asdict(shape)


def _examples(examples: np.ndarray, shape: ImageShape | TextShape) -> list[list[int]]:
    """Return images as sequences of values.

    Raises:
        ValueError: They are of another shape or other levels, or the model is one of texts.
    """
    wanted = (shape.height, shape.width, shape.channels) if isinstance(shape, ImageShape) else None
    least, greatest = examples.min(initial=0), examples.max(initial=0)
    if examples.shape[1:] != wanted or not 0 <= least <= greatest < shape.num_values:
        raise ValueError(
            f"Examples {list(examples.shape)} with levels to {greatest} were given; the model is "
            f"of {shape.description}. Give images of its data."
        )
    return examples.reshape(len(examples), -1).tolist()
