"""The same numbers as public implementations give from the same weights."""

import pytest
import torch
from torch import nn

from tests.attention.test_contract import HEADS, WIDTH, build
from tests.conftest import random_qkv

LENGTHS = torch.tensor([65, 37])


@pytest.mark.parametrize("causal", [True, False])
def test_softmax_is_pytorchs_multi_head_attention(causal):
    """The same weights, the same outputs, with padding too."""
    width = HEADS * WIDTH
    theirs = nn.MultiheadAttention(width, HEADS, batch_first=True).double()
    x = torch.randn(2, 65, width, dtype=torch.float64)
    projected = nn.functional.linear(x, theirs.in_proj_weight, theirs.in_proj_bias)
    q, k, v = projected.unflatten(-1, (3, HEADS, WIDTH)).unbind(2)
    ours = build(("model=softmax",))
    future = torch.ones(65, 65, dtype=torch.bool).triu(1)
    padding = torch.arange(65) >= LENGTHS.unsqueeze(1)
    outputs = ours(q, k, v) if causal else ours.bidirectional(q, k, v, LENGTHS)
    expected, _ = theirs(
        x, x, x,
        attn_mask=future if causal else None,
        key_padding_mask=None if causal else padding,
        need_weights=False,
    )  # fmt: skip
    torch.testing.assert_close(theirs.out_proj(outputs.flatten(2)), expected)


@pytest.mark.filterwarnings("ignore")  # its own, of a PyTorch that is no more
@pytest.mark.parametrize("causal", [True, False])
def test_linear_is_pytorch_fast_transformers(causal):
    """The paper's own code, where somebody built it: it is old, and needs a compiler."""
    attention = pytest.importorskip("fast_transformers.attention", reason="an optional peer")
    masking = pytest.importorskip("fast_transformers.masking")
    q, k, v = (x.float() for x in random_qkv(65))
    ours = build(("model=linear",)).float()
    lengths = torch.full((2,), 65) if causal else LENGTHS
    theirs = (attention.CausalLinearAttention if causal else attention.LinearAttention)(WIDTH)
    mask = masking.TriangularCausalMask(65) if causal else masking.FullMask(65)
    there = masking.LengthMask(lengths)
    expected = theirs(q, k, v, mask, there, there)
    outputs = ours(q, k, v) if causal else ours.bidirectional(q, k, v, lengths)
    for i, length in enumerate(lengths):
        torch.testing.assert_close(outputs[i, :length], expected[i, :length], rtol=1e-4, atol=1e-5)
