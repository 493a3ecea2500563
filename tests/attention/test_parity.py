"""The same numbers as public implementations give from the same weights."""

import pytest
import torch
from torch import nn

from benchmarks import peers
from linear_transformers.testing import random_qkv
from tests.attention.choices import HEADS, WIDTH, build

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


@pytest.mark.filterwarnings("ignore")  # fast_transformers' own, of a PyTorch that is no more
@pytest.mark.parametrize("name", peers.ATTENTIONS)
@pytest.mark.parametrize("t", [1, 63, 130])
def test_causal_linear_is_that_of_other_libraries(name, t):
    """Outputs and gradients, where somebody installed them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if reason := peers.unavailable(name, device, torch.float32):
        pytest.skip(reason)
    inputs = [x.float().to(device).requires_grad_() for x in random_qkv(t, d=16)]

    def results(attention):
        outputs = attention(*inputs)
        return outputs, *torch.autograd.grad(outputs.square().sum(), inputs)

    ours = build(("model=linear",), width=16).float().to(device)
    theirs = peers.ATTENTIONS[name](16)
    torch.testing.assert_close(results(ours), results(theirs), rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_bidirectional_linear_is_pytorch_fast_transformers():
    attention = pytest.importorskip("fast_transformers.attention", reason="an optional peer")
    masking = pytest.importorskip("fast_transformers.masking")
    q, k, v = (x.float() for x in random_qkv(65))
    there = masking.LengthMask(LENGTHS)
    expected = attention.LinearAttention(WIDTH)(q, k, v, masking.FullMask(65), there, there)
    outputs = build(("model=linear",)).float().bidirectional(q, k, v, LENGTHS)
    for i, length in enumerate(LENGTHS):
        torch.testing.assert_close(outputs[i, :length], expected[i, :length], rtol=1e-4, atol=1e-5)
