"""The whole step of a model as one compiled call."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from linear_transformers import kernels
from linear_transformers.attention import LinearAttention
from linear_transformers.kernels.cpp_step import Affine, Norm, PackedStack, StepBlock, StepOptions
from linear_transformers.kernels.operator import fuses
from linear_transformers.models import AutoregressiveTransformer, Block, StackState, Transformer
from linear_transformers.sampling.stepper import Stepper, padded_rows
from linear_transformers.shapes import Tokens, TokensOne


class CompiledStepper(Stepper):
    """One C++ call per step, for linear attention on CPUs: see `kernels.cpp_step`.

    A sequence comes out the same, to the last bit, in a batch of any size and with any number of
    threads. `step` updates its state in place.

    Args:
        model: The model, in float32 and `eval()` mode. Its weights are copied.
        precision: The precision that the blocks' weights are rounded to, in the model and in the
            copy; None is float32. Arithmetic and states are in float32.

    Raises:
        ValueError: The stepper cannot run this model: see `unavailable`.
    """

    name: ClassVar[str] = "compiled"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "int8")

    def __init__(self, model: AutoregressiveTransformer, precision: str | None = None):
        super().__init__(model, precision)
        self.row_multiple = 1
        stack = model.stack
        attention: LinearAttention = stack.attention
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
            precision or "float32",
        )

    @classmethod
    def unavailable(
        cls, model: AutoregressiveTransformer, precision: str | None = None
    ) -> str | None:
        """Return why the stepper cannot run a model, or None. The first call ever compiles it."""
        attention, device = model.stack.attention, model.device
        if device.type != "cpu":
            return f"it is made for CPUs, and the model is on {device}"
        if type(attention) is not LinearAttention or not fuses(attention.feature_map):
            return "it is made for linear attention with feature_map=elu, and the model has another"
        if {model.head.weight.dtype, model.tokens.weight.dtype} != {torch.float32}:
            return f"it computes in float32, and the model is in {model.tokens.weight.dtype}"
        return super().unavailable(model, precision) or kernels.step_unavailable()

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
        stack: Transformer = self.model.stack
        x = stack.positions.step(self.model.tokens(token), state.position)
        parameters = self._packed.step(x, state.layers)
        return parameters, StackState(state.position + 1, state.layers)


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
