"""The whole step of a model as one compiled call."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers import kernels
from linear_transformers.attention import LinearAttention, SoftmaxAttention, WindowAttention
from linear_transformers.attention.cache import KeyValueCache
from linear_transformers.attention.window import WindowState
from linear_transformers.feature_maps import Elu
from linear_transformers.kernels.cpp_step import (
    Affine,
    Norm,
    PackedStack,
    StepBlock,
    StepMixer,
    StepOptions,
    StepParts,
)
from linear_transformers.kernels.operator import fuses
from linear_transformers.mixers import DeltaNet, GatedDeltaNet, MixerState, MultiHeadAttention
from linear_transformers.mixers.convolution import ShortConvolution
from linear_transformers.mixers.fast_weights import Decay
from linear_transformers.mixers.multi_head import NORM_EPS as HEAD_EPS
from linear_transformers.mixers.multi_head import UNIT_EPS, MultiHead
from linear_transformers.models import AutoregressiveTransformer, Block, StackState, Transformer
from linear_transformers.models.block import ACTIVATIONS, NORM_EPS
from linear_transformers.models.dropout import Dropout
from linear_transformers.models.transformer import Head
from linear_transformers.sampling.stepper import Stepper, padded_rows
from linear_transformers.shapes import Tokens, TokensOne

# The layers that the compiled step computes. Subclasses of them may compute something else.
LAYERS = {
    *(Block, MultiHeadAttention, DeltaNet, GatedDeltaNet, Decay, ShortConvolution),
    *(LinearAttention, SoftmaxAttention, WindowAttention, Elu, Dropout, *ACTIVATIONS.values()),
    *(nn.Linear, Head, nn.LayerNorm, nn.RMSNorm, nn.Sequential),
}


class CompiledStepper(Stepper):
    """One C++ call per step, for linear attention, softmax attention to all positions or the last,
    and the delta rule, in layers of one kind or of several, on CPUs: see `kernels.cpp_step`.

    A step comes out the same, to the last bit, in a batch of any size and with any number of
    threads. It updates its state in place. A prefill is the model's own.

    Args:
        model: The model, in float32 and `eval()` mode. Its weights are copied.
        precision: The precision that the blocks' weights are rounded to, in the model and in the
            copy, and in a step what they multiply; None is float32. Sums and states are in float32.

    Raises:
        ValueError: The stepper cannot run this model: see `unavailable`.
    """

    name: ClassVar[str] = "compiled"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "int8")

    def __init__(self, model: AutoregressiveTransformer, precision: str | None = None):
        super().__init__(model, precision)
        self.row_multiple = 1
        self._packed = PackedStack(parts_of(model), precision or "float32")
        self._shapes: dict[int, list[tuple[int, ...]]] = {}  # of states, by numbers of sequences

    @classmethod
    def unavailable(
        cls, model: AutoregressiveTransformer, precision: str | None = None
    ) -> str | None:
        """Return why the stepper cannot run a model, or None. The first call ever compiles it."""
        if model.device.type != "cpu":
            return f"it is made for CPUs, and the model is on {model.device}"
        return (
            not_in_parts(model)
            or super().unavailable(model, precision)
            or kernels.step_unavailable()
        )

    @staticmethod
    def convert(model: AutoregressiveTransformer, precision: str) -> None:
        """Round the weights of a model's blocks to a precision, in place. They stay float32."""
        for block in model.stack.blocks:
            for module in block.modules():
                if isinstance(module, nn.Linear):
                    module.weight.data = kernels.rounded(module.weight.data, precision)

    def prefill(
        self, tokens: Tokens, state: StackState | None = None
    ) -> tuple[Float[Tensor, "b t p"], StackState]:
        rows = torch.arange(len(tokens))
        if state is not None:
            state = self.select(state, padded_rows(rows, self.model.row_multiple))
        parameters, state = self.model.prefill(padded_rows(tokens, self.model.row_multiple), state)
        return parameters[rows], self.select(state, rows)

    def step(self, token: TokensOne, state: StackState) -> tuple[Float[Tensor, "b p"], StackState]:
        self._check(state.layers, len(token))
        stack: Transformer = self.model.stack
        x = stack.positions.step(self.model.tokens(token), state.position)
        layers = [_advanced(layer) for layer in state.layers]
        pasts = [_tensors(layer.past) for layer in layers]
        length = int(state.position) + 1
        # Else the step would write over a position that is still to be read.
        caches = (x.past for x in layers if isinstance(x.past, KeyValueCache))
        assert all(cache.length == length for cache in caches)
        parameters = self._packed.step(x, pasts, [layer.inputs for layer in layers], length)
        return parameters, StackState(length, tuple(layers))

    def _check(self, layers: Sequence[MixerState], count: int) -> None:
        """Check that a state is the model's: the step reads and writes memory by its sizes."""
        if count not in self._shapes:
            self._shapes[count] = _shapes(self.model.init_state(count).layers)
        if (found := _shapes(layers)) == self._shapes[count]:
            return
        if (sequences := found[0][0]) != count:
            raise ValueError(
                f"The state is that of {sequences} sequences, and there are {count} tokens. "
                "Give the state of the same sequences."
            )
        raise ValueError("The state is that of another model. Give that of the same model.")


def not_in_parts(model: AutoregressiveTransformer) -> str | None:
    """Return why the compiled step cannot compute a model, or None."""
    for mixer in model.stack.mixers:
        if reason := _mixer_not_in_parts(mixer):
            return reason
    parts = (*model.stack.blocks, model.stack.norm, model.head)
    found = {type(layer) for part in parts for layer in part.modules()}
    if others := found - LAYERS:
        names = ", ".join(sorted(kind.__name__ for kind in others))
        return f"it computes what layers of this project do, and the model has others: {names}"
    if {model.head.weight.dtype, model.tokens.weight.dtype} != {torch.float32}:
        return f"it computes in float32, and the model is in {model.tokens.weight.dtype}"
    return None


def _mixer_not_in_parts(mixer: Any) -> str | None:
    attention: Any = mixer.attention if isinstance(mixer, MultiHeadAttention) else mixer
    linear = type(attention) is LinearAttention and fuses(attention.feature_map)
    others = (SoftmaxAttention, WindowAttention, DeltaNet, GatedDeltaNet)
    if not (linear or type(attention) in others):
        return (
            "it is made for linear attention with feature_map=elu, for the delta rule with one "
            "decay a head or none, and for softmax attention, and the model has another"
        )
    normed = mixer.qk_norm is not None and attention is not mixer  # the delta rule's is its own
    if mixer.rotary or normed or mixer.low_rank_gate:
        return "it has no rotary positions, norm of queries and keys or gate of low rank"
    if attention.group > 1:
        return "it has no grouped queries"
    return None


def parts_of(model: AutoregressiveTransformer) -> StepParts:
    """Return what a step of a model computes with, block by block: see `not_in_parts`."""
    stack = model.stack
    first = stack.blocks[0]
    options = StepOptions(first.pre_norm, first.activation, NORM_EPS)
    blocks = [_block(block) for block in stack.blocks]
    return StepParts(blocks, _norm(stack.norm), _affine(model.head), options)


def _advanced(layer: MixerState) -> MixerState:
    """Return the state after one more position, whose keys and values are not written yet."""
    past = layer.past
    if layer.inputs is not None:
        layer = layer._replace(inputs=layer.inputs.float())  # autocast's are in another type
    if isinstance(past, KeyValueCache):
        return layer._replace(past=past.lengthened(1))
    if isinstance(past, WindowState):
        return layer._replace(past=past._replace(written=past.written + 1))
    return layer


def _tensors(past: Any) -> tuple[Tensor, ...]:
    if isinstance(past, KeyValueCache):
        return past.buffer.keys, past.buffer.values
    if isinstance(past, WindowState):
        return past.keys, past.values
    return (past,) if isinstance(past, Tensor) else tuple(past)


def _shapes(layers: Sequence[MixerState]) -> list[tuple[int, ...]]:
    """Return the shapes of all parts of a state, but for the room that caches have."""
    shapes: list[tuple[int, ...]] = []
    for past, inputs, _ in layers:
        shapes += [part.shape for part in _tensors(past)]
        if isinstance(past, KeyValueCache):
            shapes[-2:] = [(*shape[:2], shape[3]) for shape in shapes[-2:]]
        if inputs is not None:
            shapes.append(inputs.shape)
    return shapes


def _block(block: Block) -> StepBlock:
    mixer = block.mixer
    assert isinstance(mixer, MultiHead)
    up, down = (module for module in block.feedforward if isinstance(module, nn.Linear))
    return StepBlock(
        mixer=_mixer(mixer),
        project_in=_projected(mixer),
        project_out=_affine(mixer.project_out),
        up=_affine(up),
        down=_affine(down),
        mixer_norm=_norm(block.mixer_norm),
        feedforward_norm=_norm(block.feedforward_norm),
        taps=None if mixer.convolution is None else mixer.convolution.weight,
        output_norm=mixer.output_norm,
        decay_rate=mixer.decay.log_rate.exp().flatten()
        if isinstance(mixer, GatedDeltaNet)
        else None,
    )


def _mixer(mixer: MultiHead) -> StepMixer:
    assert isinstance(mixer, MultiHeadAttention | DeltaNet)
    if isinstance(mixer, DeltaNet):
        name, eps, scales = "delta", UNIT_EPS, (1.0, 1.0)
    elif isinstance(attention := mixer.attention, LinearAttention):
        name, eps, scales = "linear", attention.eps, (attention.scale**0.5,) * 2
    else:
        scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
        name, eps, scales = "softmax", 0.0, (scale, 1.0)
    return StepMixer(
        attention=name,
        num_heads=mixer.num_heads,
        key_dim=mixer.head_dims[0],
        value_dim=mixer.head_dims[-1],
        output_gate=mixer.output_gate,
        output_norm_eps=HEAD_EPS,
        eps=eps,
        query_scale=scales[0],
        key_scale=scales[1],
    )


def _projected(mixer: MultiHead) -> Affine:
    """Return the projection to all that a mixer computes from x, the delta rule's logits last."""
    parts = [_affine(mixer.project_in)]
    if isinstance(mixer, DeltaNet):
        parts.append(_affine(mixer.strength))
    if isinstance(mixer, GatedDeltaNet):
        logits = _affine(mixer.decay.project)
        parts.append(logits._replace(bias=mixer.decay.bias.flatten()))
    return Affine(*(torch.cat(rows) for rows in zip(*parts, strict=True)))


def _affine(linear: nn.Module) -> Affine:
    assert isinstance(linear, nn.Linear)
    weight, bias = linear.weight, linear.bias
    return Affine(weight, weight.new_zeros(len(weight)) if bias is None else bias)


def _norm(norm: nn.LayerNorm | nn.RMSNorm) -> Norm:
    return Norm(norm.weight, norm.bias if isinstance(norm, nn.LayerNorm) else None)
