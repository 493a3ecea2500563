"""Whole sequences by LinearAttention, an operator of ONNX 27, where a model is made of it.

    S_i = exp(g_i) S_(i-1) + b_i k_i (v_i - exp(g_i) S_(i-1)^T k_i)^T,    o_i = S_i^T q_i

Without a strength b_i the state is not corrected, without a decay g_i nothing is forgotten. It has
no normaliser: a column of ones beside the values gives linear attention's.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_transformers.attention import LinearAttention
from linear_transformers.export.steps import BATCH, SequenceStep
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.mixers.fast_weights import FastWeights
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.models.transformer import StackState
from linear_transformers.ops.normalize import normalize
from linear_transformers.ops.precision import mapped
from linear_transformers.ops.recurrent import LinearState

OPSET, NAME = 27, "LinearAttention"
RULES = ("linear", "gated", "gated_delta")  # by the number of gates
DOMAIN = "linear_transformers"  # the operator's, until the graph is one of ONNX 27
LENGTH = 5  # of the example that is traced; any other will do


class SequencesByOperator(SequenceStep):
    """A model's `prefill` as a function of tensors, with its recurrences as the operator's.

    Args:
        model: The model, in `eval()` mode.

    Raises:
        ValueError: A mixer of the model is not made of the operator.
    """

    def __init__(self, model: AutoregressiveTransformer):
        super().__init__(model)
        self.inputs = {"token": torch.zeros(BATCH, LENGTH, dtype=torch.long)}
        mixers: list[Any] = self.model.stack.mixers
        for mixer in mixers:
            attention = mixer.attention if isinstance(mixer, MultiHeadAttention) else None
            if type(attention) is LinearAttention and not mixer.rotary:
                mixer.attention.over_sequence = _linear
            elif isinstance(mixer, FastWeights):
                mixer.over_sequence = recurrence
            else:
                raise ValueError(
                    f"onnx_prefill=operator was asked for, and {mixer.name} here is not made of "
                    f"ONNX's {NAME}. Use onnx_prefill=scan, which every step has."
                )

    def step(self, *inputs: Tensor, position: Tensor, state: Any) -> tuple[Tensor, Any]:
        (tokens,) = inputs
        parameters, after = self.model.prefill(tokens, StackState(position, state))
        return parameters, after.layers


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, *gates: Tensor, state: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return the operator's outputs [b, t, h, m], and the state [b, h, c, m] after them.

    The last gate is the decay, in logs; one before that, the strength.
    """
    heads, width = v.shape[2:]
    packed = [x.flatten(2) for x in (q, k, v, *reversed(gates))]
    outputs, after = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::{NAME}",
        [*packed[:3], state, *packed[3:]],
        {
            "q_num_heads": heads,
            "kv_num_heads": heads,
            "scale": 1.0,
            "update_rule": RULES[len(gates)],
        },
        dtypes=(v.dtype, state.dtype),
        shapes=((*v.shape[:2], heads * width), state.shape),
        version=1,
    )
    return outputs.unflatten(2, (heads, width)), after


def standardized(model: Any) -> Any:
    """Return an ONNX model whose operators of `DOMAIN` are those of ONNX 27, changed in place."""
    for node in model.graph.node:
        if node.domain == DOMAIN:
            node.domain = ""
    for used in [*model.opset_import]:
        if used.domain == DOMAIN:
            model.opset_import.remove(used)
        elif used.domain == "":
            used.version = OPSET
    return model


def _linear(
    q: Tensor, k: Tensor, v: Tensor, *, eps: float, phi: Any = None, state: LinearState
) -> tuple[Tensor, LinearState]:
    q, k = mapped(phi, q, k)
    sums = torch.cat([state.kv_sum, state.k_sum.unsqueeze(-1)], dim=-1)
    outputs, sums = recurrence(q, k, F.pad(v, (0, 1), value=1.0), state=sums)
    outputs = normalize(outputs[..., :-1], outputs[..., -1], eps=eps)
    return outputs, LinearState(sums[..., :-1], sums[..., -1])
