"""The libraries that the benchmarks compare with, where they are installed.

    uv sync --extra fla                  flash-linear-attention, for GPUs
    uv sync --extra fast-transformers    the paper's own library, which has not changed since 2021

The second takes five to nine minutes to build with a present torch. For CPUs, take nvcc off PATH.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.models import AutoregressiveTransformer, StackState, Transformer
from linear_transformers.sampling import Stepper
from linear_transformers.shapes import Rows, Tokens, TokensOne

FAST_TRANSFORMERS, FLA = "fast-transformers", "fla"
PACKAGES = {FAST_TRANSFORMERS: "pytorch-fast-transformers", FLA: "flash-linear-attention"}
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def unavailable(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a peer's attention cannot run on values of a type on a device, or None."""
    module, package = name.replace("-", "_"), PACKAGES[name]
    if find_spec(module) is None:
        return f"{package} is not installed (uv sync --extra {name})"
    if name == FAST_TRANSFORMERS and dtype != torch.float32:
        return "its kernel knows float32 only"
    if name == FLA and device.type != "cuda":
        return f"it runs on GPUs, and the tensors are on {device}"
    return "it has no float64" if dtype == torch.float64 else None


def fast_transformers_attention(head_dim: int) -> Attention:
    """Return fast-transformers' layer of causal linear attention, which keeps its masks."""
    from fast_transformers.attention import CausalLinearAttention  # pyright: ignore
    from fast_transformers.masking import LengthMask, TriangularCausalMask  # pyright: ignore

    layer, masks = CausalLinearAttention(head_dim), {}

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, length = q.shape[:2]
        if (batch, length) not in masks:
            lengths = LengthMask(torch.full((batch,), length), device=q.device)
            masks[batch, length] = TriangularCausalMask(length, device=q.device), lengths
        causal, lengths = masks[batch, length]
        return layer(q, k, v, causal, lengths, lengths)

    return run


def fla_attention(head_dim: int) -> Attention:
    """Return fla's chunked kernel and normaliser, as its layer calls them after the feature map.

    It takes features in the type of the values; autocast computes exponentials in float32.
    """
    from fla.ops.linear_attn import chunk_linear_attn

    phi = Elu(head_dim)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = (phi(x).to(v.dtype) for x in (q, k))
        return chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0]  # pyright: ignore

    return run


ATTENTIONS = {FAST_TRANSFORMERS: fast_transformers_attention, FLA: fla_attention}


class FastTransformersStepper(Stepper):
    """A stepper of fast-transformers' recurrent transformer, with the weights of our model.

    Embedding, positions, head and the prefill, which is not measured, are ours.
    """

    name: ClassVar[str] = FAST_TRANSFORMERS

    def __init__(self, model: AutoregressiveTransformer, precision: str | None = None):
        super().__init__(model, precision)
        from fast_transformers.builders import RecurrentEncoderBuilder  # pyright: ignore

        stack = model.stack
        blocks: Any = stack.blocks
        attention = blocks[0].mixer.attention
        encoder: Any = RecurrentEncoderBuilder.from_kwargs(
            attention_type="linear", n_layers=len(stack.blocks), n_heads=attention.num_heads,
            query_dimensions=attention.head_dim, value_dimensions=attention.head_dim, dropout=0.0,
            feed_forward_dimensions=4 * stack.model_dim, activation="relu",
        ).get()  # fmt: skip
        for layer, block in zip(encoder.layers, blocks, strict=True):
            projections = (
                getattr(layer.attention, f"{x}_projection") for x in ("query", "key", "value")
            )
            weights = block.mixer.project_in.weight.chunk(3)
            for projection, weight, bias in zip(
                projections, weights, block.mixer.project_in.bias.chunk(3), strict=True
            ):
                projection.load_state_dict({"weight": weight, "bias": bias})
            for theirs, ours in (
                (layer.attention.out_projection, block.mixer.project_out),
                (layer.linear1, block.feedforward[0]), (layer.linear2, block.feedforward[3]),
                (layer.norm1, block.mixer_norm), (layer.norm2, block.feedforward_norm),
            ):  # fmt: skip
                theirs.load_state_dict(ours.state_dict())
        encoder.norm.load_state_dict(stack.norm.state_dict())
        self.encoder = encoder.to(model.device).eval()

    @classmethod
    def unavailable(
        cls, model: AutoregressiveTransformer, precision: str | None = None
    ) -> str | None:
        reason = super().unavailable(model, precision)
        return reason or unavailable(cls.name, model.device, model.head.weight.dtype)

    def prefill(self, tokens: Tokens, state: Any = None) -> tuple[Tensor, Any]:
        assert state is None
        parameters, read = self.model.prefill(tokens)
        return parameters, StackState(read.position, tuple([*layer.past] for layer in read.layers))

    def step(self, token: TokensOne, state: Any) -> tuple[Tensor, Any]:
        x = self.model.stack.positions.step(self.model.tokens(token), state.position)
        x, layers = self.encoder(x, list(state.layers))
        return self.model.head(x), StackState(state.position + 1, tuple(layers))

    def select(self, state: Any, rows: Rows) -> Any:
        layers = tuple([sums[rows] for sums in layer] for layer in state.layers)
        return StackState(state.position, layers)


class FastTransformersStack(nn.Module):
    """fast-transformers' encoder in training, behind the positions of one of our stacks.

    Args:
        stack: The stack in whose place it is to be, of the same sizes.
        dropout: The dropout rate of both.
    """

    def __init__(self, stack: Transformer, dropout: float = 0.1):
        super().__init__()
        from fast_transformers.builders import TransformerEncoderBuilder  # pyright: ignore

        attention: Any = stack.blocks[0].mixer.attention
        self.positions = stack.positions
        self.dropout = nn.Dropout(dropout)
        self.encoder: Any = TransformerEncoderBuilder.from_kwargs(
            attention_type="causal-linear", n_layers=len(stack.blocks), n_heads=attention.num_heads,
            query_dimensions=attention.head_dim, value_dimensions=attention.head_dim,
            feed_forward_dimensions=4 * stack.model_dim, activation="relu", dropout=dropout,
        ).get()  # fmt: skip

    def forward(self, x: Tensor, piece: None = None) -> Tensor:
        from fast_transformers.masking import TriangularCausalMask  # pyright: ignore

        mask = TriangularCausalMask(x.shape[1], device=x.device)
        return self.encoder(self.dropout(self.positions(x)), attn_mask=mask)


class FlaLinearAttention(LinearAttention):
    """Linear attention by fla's kernel, in one of our stacks in training."""

    def __init__(self, num_heads: int, head_dim: int):
        super().__init__(num_heads, head_dim, feature_map=Elu)
        self.run = fla_attention(head_dim)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, rotation: Any = None) -> Tensor:
        return self.run(q, k, v)
