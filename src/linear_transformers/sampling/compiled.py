"""A model in recurrent mode whose step is one compiled call."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers import kernels as ops
from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.kernels.cpp_step import Affine, Norm, PackedStack, StepBlock, StepOptions
from linear_transformers.models import AutoregressiveTransformer, Block, StackState, Transformer
from linear_transformers.sampling.autoregressive import padded_rows
from linear_transformers.shapes import Tokens, TokensOne


class CompiledDecoder:
    """What a model is when it steps, in a call of C++ a step: see `ops.cpp_step`.

    A sequence comes out the same, to the last bit, in a batch of any size and with any number of
    threads. The state that `step` is given is used up: it is the state that it returns. Continue
    a copy, as `select` makes it, where the past will be needed again.

    Args:
        model: In `eval()` mode; its weights are copied.
        precision: Of the copied weights of blocks: float32, bfloat16 or int8. What is stepped is
            the model whose weights are rounded so: see `round_weights`.

    Raises:
        ValueError: There is no such step of this model, or not here: see `unavailable`.
    """

    row_multiple = 1

    def __init__(self, model: AutoregressiveTransformer, precision: str = "float32"):
        if reason := self.unavailable(model):
            raise ValueError(f"The compiled step cannot run: {reason}.")
        stack = model.stack
        attention: LinearAttention = stack.attention
        self.model = model
        self.device = model.device
        self.with_start = model.with_start
        self.select = model.select
        self._packed = PackedStack(
            [_block(block) for block in stack.blocks],
            _norm(stack.norm),
            _affine(model.head),
            StepOptions(
                num_heads=attention.num_heads,
                pre_norm=stack.blocks[0].pre_norm,
                gelu=isinstance(stack.blocks[0].feedforward[1], nn.GELU),
                norm_eps=stack.norm.eps,
                eps=attention.eps,
                scale=attention.scale,
            ),
            precision,
        )

    def prefill(
        self, tokens: Tokens, state: StackState | None = None
    ) -> tuple[Float[Tensor, "b t p"], StackState]:
        """Read a whole stretch in parallel, as the model does."""
        rows = torch.arange(len(tokens))
        if state is not None:
            state = self.select(state, padded_rows(rows, self.model.row_multiple))
        parameters, state = self.model.prefill(padded_rows(tokens, self.model.row_multiple), state)
        return parameters[rows], self.select(state, rows)

    @staticmethod
    def unavailable(model: AutoregressiveTransformer) -> str | None:
        """Why there is no compiled step of a model; None where there is. Compiles, at first."""
        attention, device = model.stack.attention, model.device
        if device.type != "cpu":
            return f"it is made for CPUs, and the model is on {device}"
        if type(attention) is not LinearAttention or type(attention.feature_map) is not Elu:
            return "it is made for linear attention with feature_map=elu, and the model has other"
        if {model.head.weight.dtype, model.tokens.weight.dtype} != {torch.float32}:
            return f"it computes in float32, and the model is in {model.tokens.weight.dtype}"
        return ops.step_unavailable()

    def step(self, token: TokensOne, state: StackState) -> tuple[Float[Tensor, "b p"], StackState]:
        """Read one token a sequence; the parameters of the value that follows it."""
        stack: Transformer = self.model.stack
        x = stack.positions.step(self.model.tokens(token), state.position)
        parameters = self._packed.step(x, state.layers)
        return parameters, StackState(state.position + 1, state.layers)


def round_weights(model: AutoregressiveTransformer, precision: str) -> None:
    """Round, in place, what `CompiledDecoder` packs in a precision."""
    for block in model.stack.blocks:
        for module in block.modules():
            if isinstance(module, nn.Linear):
                module.weight.data = ops.rounded(module.weight.data, precision)


def _block(block: Block) -> StepBlock:
    up, down = (module for module in block.feedforward if isinstance(module, nn.Linear))
    return StepBlock(
        project_in=_affine(block.project_in),
        project_out=_affine(block.project_out),
        up=_affine(up),
        down=_affine(down),
        attention_norm=_norm(block.attention_norm),
        feedforward_norm=_norm(block.feedforward_norm),
    )


def _affine(linear: nn.Linear) -> Affine:
    return Affine(linear.weight, linear.bias)


def _norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight, norm.bias)
