"""One position of a whole stack of blocks in C++ for CPUs: `cpp_step.cpp`.

A step of a model is one call, with elu + 1 fused and weights packed in the order in which they are
read. In bfloat16 and int8 the blocks' products round their weights and inputs, and sum in int32 or
float32, by the processor's own instructions where it has them; all else and states are float32.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor

from linear_transformers.kernels.compiling import compiled, uncompiled

SOURCE = "cpp_step.cpp"
FORMATS = {"float32": 0, "bfloat16": 1, "int8": 2}  # `Format` in the source
IN_WORD = {"float32": 1, "bfloat16": 2, "int8": 4}  # the inputs that a product takes at a time
ATTENTIONS = {"linear": 0, "softmax": 1, "delta": 2}  # `Attention`
ACTIVATIONS = {"relu": 0, "gelu": 1, "swiglu": 2}  # `Activation`
GATES = {None: 0, "silu": 1, "sigmoid": 2}  # `Gate`
INT8_MAX = 127


class Affine(NamedTuple):
    """y = W x + b."""

    weight: Float[Tensor, "outputs inputs"]
    bias: Float[Tensor, " outputs"]


class Norm(NamedTuple):
    """The learned scale and shift of a layer norm; without a shift, an RMS norm."""

    weight: Float[Tensor, " e"]
    bias: Float[Tensor, " e"] | None


class StepMixer(NamedTuple):
    """What a mixer computes with beside its weights."""

    attention: str  # one of `ATTENTIONS`
    num_heads: int
    key_dim: int  # of a head
    value_dim: int
    output_gate: str | None  # one of `GATES`
    output_norm_eps: float
    eps: float  # of linear attention, see `normalize`; of the lengths of the delta rule's keys
    query_scale: float  # what queries are multiplied by
    key_scale: float  # what keys are multiplied by


class StepBlock(NamedTuple):
    """One block: attention and feed-forward, each with its norm."""

    mixer: StepMixer
    # To queries, keys, values, gates, and the delta rule's logits of strengths and decays, in this
    # order, each head by head.
    project_in: Affine
    project_out: Affine
    up: Affine
    down: Affine
    mixer_norm: Norm
    feedforward_norm: Norm
    taps: Float[Tensor, "taps channels"] | None  # of the short convolution
    output_norm: Float[Tensor, " m"] | None  # of each head's outputs
    decay_rate: Float[Tensor, " h"] | None = None  # of the delta rule, where it has decays


class StepOptions(NamedTuple):
    """The options that the blocks of a stack have in common."""

    pre_norm: bool
    activation: str  # one of `ACTIVATIONS`
    norm_eps: float


class StepParts(NamedTuple):
    """What a step of a model computes with, between its vectors with positions and parameters."""

    blocks: Sequence[StepBlock]  # in the order in which they run
    norm: Norm  # the last one
    head: Affine  # to parameters
    options: StepOptions


def unavailable() -> str | None:
    """Return why the step cannot run here, or None. The first call compiles it."""
    return uncompiled(SOURCE, torch.device("cpu"))


def rounded(weight: Float[Tensor, "outputs inputs"], precision: str) -> Tensor:
    """Return weights rounded as a precision, one of `FORMATS`, rounds them when they are packed.

    bfloat16 keeps 8 bits of each; int8 keeps 255 levels, between plus and minus the largest
    weight of an output.
    """
    if precision == "int8":
        whole, scale = levels(weight)
        return (whole * scale.unsqueeze(-1)).to(weight.dtype)
    return weight.to(getattr(torch, precision)).to(weight.dtype)


class PackedStack:
    """The weights of a stack and of its head, as a step reads them.

    Args:
        parts: The weights. The head is always in float32.
        precision: The precision of the blocks' matrices: one of `FORMATS`.

    Raises:
        ValueError: The step cannot be compiled here.
    """

    def __init__(self, parts: StepParts, precision: str):
        library = compiled(SOURCE)
        if isinstance(library, str):
            raise ValueError(f"The compiled step cannot run here: {library}.")
        library.panel_width.restype = library.room_for.restype = ctypes.c_int64
        self._library = library
        self._panel = library.panel_width()
        self._kept: list[Tensor] = []  # the tensors that the structures below point to
        self._workspace: dict[tuple[int, ...], Tensor] = {}
        blocks, options = parts.blocks, parts.options
        self._layers = (_Layer * len(blocks))()
        hidden, width = blocks[0].down.weight.shape[::-1]
        for layer, block in zip(self._layers, blocks, strict=True):
            self._fill(layer, block, precision)
        self._stack = _Stack(
            width=width, hidden=hidden, layers=len(blocks),
            activation=ACTIVATIONS[options.activation], pre_norm=options.pre_norm,
            norm_eps=options.norm_eps, norm=self._norm(parts.norm),
            head=self._matrix(parts.head, "float32"),
        )  # fmt: skip

    def step(
        self,
        x: Float[Tensor, "b e"],
        pasts: Sequence[tuple[Tensor, ...]],
        inputs: Sequence[Float[Tensor, "b _ _"] | None],
        length: int,
    ) -> Float[Tensor, "b p"]:
        """Return the parameters of one position of each sequence, changing the states in place.

        Args:
            x: The vectors with positions, float32.
            pasts: The states of the layers' heads, dense, float32: `kv_sum` [b, h, c, m] and
                `k_sum` [b, h, c]; or keys and values [b, h, s, c], of which position i has slot
                i mod s, in place of what it had; or the delta rule's matrix alone, [b, h, c, m].
                Of these shapes, which are not checked.
            inputs: The last inputs of the layers' short convolutions, dense, float32.
            length: The number of positions, this one included.
        """
        stack, threads = self._stack, torch.get_num_threads()
        stack.batch, stack.threads, stack.length = len(x), threads, length
        for layer, past, kept in zip(self._layers, pasts, inputs, strict=True):
            # The step reads and writes memory as if it were so, whatever it is given.
            assert all(part.dtype == x.dtype and part.is_contiguous() for part in past)
            layer.past[: len(past)] = [part.data_ptr() for part in past]
            layer.capacity = past[0].shape[2]
            if kept is not None:
                assert kept.dtype == x.dtype
                assert kept.is_contiguous()
                layer.inputs = kept.data_ptr()
        shape = (len(x), threads, max(layer.capacity for layer in self._layers))
        if shape not in self._workspace:
            floats = self._library.room_for(ctypes.byref(stack), self._layers)
            self._workspace = {shape: torch.empty(floats, dtype=torch.float32)}
        x = x.contiguous()
        out = x.new_empty(len(x), -(-stack.head.outputs // self._panel) * self._panel)
        self._library.step(
            ctypes.byref(stack), self._layers,
            *(ctypes.c_void_p(t.data_ptr()) for t in (x, out, self._workspace[shape])),
        )  # fmt: skip
        return out[:, : stack.head.outputs]

    def _fill(self, layer: "_Layer", block: StepBlock, precision: str) -> None:
        mixer, taps = block.mixer, block.taps
        factors = (mixer.query_scale, mixer.key_scale, 1.0)
        dims = torch.tensor((mixer.key_dim, mixer.key_dim, mixer.value_dim))
        scales = torch.tensor(factors, dtype=torch.float32)
        scales = scales.repeat_interleave(dims * mixer.num_heads)
        # The convolution's last inputs are the model's own, so its taps are scaled, not they.
        scaled = taps is None and factors != (1.0, 1.0, 1.0)
        layer.project_in = self._matrix(block.project_in, precision, scales if scaled else None)
        layer.project_out = self._matrix(block.project_out, precision)
        layer.up = self._matrix(block.up, precision)
        layer.down = self._matrix(block.down, precision)
        layer.mixer_norm = self._norm(block.mixer_norm)
        layer.feedforward_norm = self._norm(block.feedforward_norm)
        layer.taps = None if taps is None else self._pointer(taps.detach() * scales)
        layer.output_norm = self._pointer_or_none(block.output_norm)
        layer.decay_rate = self._pointer_or_none(block.decay_rate)
        layer.attention, layer.gate = ATTENTIONS[mixer.attention], GATES[mixer.output_gate]
        layer.heads, layer.projected = mixer.num_heads, len(block.project_in.weight)
        layer.key_width, layer.value_width = mixer.key_dim, mixer.value_dim
        layer.num_taps = 0 if taps is None else len(taps)
        layer.eps, layer.output_norm_eps = mixer.eps, mixer.output_norm_eps

    def _matrix(self, affine: Affine, precision: str, factor: Tensor | None = None) -> "_Matrix":
        """Pack weights by panels of outputs, with each output's scale and bias.

        The factor is that of the first outputs.
        """
        outputs, inputs = affine.weight.shape
        weight, bias = affine.weight.detach(), affine.bias.detach().float()
        scale, sums, missing = None, None, -outputs % self._panel
        if factor is not None:
            scale = F.pad(factor, (0, outputs - len(factor)), value=1.0)
            bias = bias * scale
        if precision == "int8":
            weight, steps = levels(weight)
            scale = steps if scale is None else steps * scale
            sums = self._pointer(F.pad(weight.sum(1) * scale, (0, missing)))
        group = IN_WORD[precision]
        panels = F.pad(weight, (0, -inputs % group, 0, missing))
        panels = panels.unflatten(0, (-1, self._panel)).unflatten(2, (-1, group))
        return _Matrix(
            self._pointer(panels.transpose(1, 2).to(getattr(torch, precision))),
            None if scale is None else self._pointer(F.pad(scale, (0, missing))),
            self._pointer(F.pad(bias, (0, missing))), sums, inputs, outputs, FORMATS[precision],
        )  # fmt: skip

    def _norm(self, norm: Norm) -> "_Norm":
        return _Norm(*map(self._pointer_or_none, norm))

    def _pointer_or_none(self, x: Tensor | None) -> int | None:
        return None if x is None else self._pointer(x.detach().float())

    def _pointer(self, x: Tensor) -> int:
        x = x.clone(memory_format=torch.contiguous_format)
        self._kept.append(x)
        return x.data_ptr()


def levels(weight: Tensor) -> tuple[Int8[Tensor, "outputs inputs"], Float[Tensor, " outputs"]]:
    """Return weights as int8 from -127 to 127, and the scale of each output."""
    scale = weight.detach().float().abs().amax(1) / INT8_MAX
    scale = scale.masked_fill(scale == 0, 1.0)
    return (weight / scale.unsqueeze(-1)).round().to(torch.int8), scale


class _Matrix(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "scale", "bias", "sums")),
        ("inputs", ctypes.c_int64), ("outputs", ctypes.c_int64), ("format", ctypes.c_int64),
    )  # fmt: skip


class _Norm(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("project_in", _Matrix), ("project_out", _Matrix), ("up", _Matrix), ("down", _Matrix),
        ("mixer_norm", _Norm), ("feedforward_norm", _Norm),
        *((name, ctypes.c_void_p) for name in ("taps", "output_norm", "decay_rate", "inputs")),
        ("past", ctypes.c_void_p * 2),
        *((name, ctypes.c_int64)
          for name in ("attention", "heads", "key_width", "value_width", "projected", "num_taps",
                       "gate", "capacity")),
        ("eps", ctypes.c_float), ("output_norm_eps", ctypes.c_float),
    )  # fmt: skip


class _Stack(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64)
          for name in ("batch", "width", "hidden", "layers", "threads", "activation", "length")),
        ("pre_norm", ctypes.c_bool), ("norm_eps", ctypes.c_float),
        ("norm", _Norm), ("head", _Matrix),
    )  # fmt: skip
