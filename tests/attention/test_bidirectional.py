"""Attention that sees everything: padding is invisible, memories are read as often as one likes."""

import math

import pytest
import torch
from torch import Tensor

from linear_transformers.attention import (
    BidirectionalAttention,
    CrossAttention,
    LinearAttention,
    SoftmaxAttention,
    WindowAttention,
)
from linear_transformers.testing import random_qkv
from tests.attention.choices import HEADS, WIDTH, build, choices
from tests.attention.definitions import reformer, scores, weighted

ENCODERS = [choice for choice in choices() if isinstance(build(choice), BidirectionalAttention)]
DECODERS = [choice for choice in choices() if isinstance(build(choice), CrossAttention)]
LENGTHS = torch.tensor([65, 37])


def definition(attention, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """In O(t s): every query against every key of its sequence."""
    seen = (torch.arange(k.shape[1]) < lengths.unsqueeze(1))[:, None, None]
    if isinstance(attention, SoftmaxAttention):
        return weighted(scores(q, k), seen, v)
    if isinstance(attention, WindowAttention):
        i = torch.arange(q.shape[1])
        near = (i.unsqueeze(1) - i).abs() < attention.window
        return weighted(scores(q, k), near & (seen | (i.unsqueeze(1) == i)), v)
    if isinstance(attention, LinearAttention):
        phi = attention.feature_map
        weights = torch.einsum("bthc,bshc->bhts", phi(q), phi(k)) * seen
        total = weights.sum(-1, keepdim=True) + attention.eps
        return torch.einsum("bhts,bshm->bthm", weights / total, v)
    return reformer(attention, q, v, v, causal=False, lengths=lengths)


@pytest.mark.parametrize("choice", ENCODERS, ids=" ".join)
def test_it_is_the_definition_and_padding_is_invisible(choice):
    attention = build(choice)
    q, k, v = random_qkv(65)
    expected = definition(attention, q, k, v, LENGTHS)
    for x in (q, k, v):
        x[1, 37:] = math.nan
    with torch.no_grad():
        outputs = attention.bidirectional(q, k, v, LENGTHS)
    torch.testing.assert_close(outputs[0], expected[0])
    torch.testing.assert_close(outputs[1, :37], expected[1, :37])


@pytest.mark.parametrize("choice", ENCODERS, ids=" ".join)
@pytest.mark.parametrize("t", [1, 2, 63, 65])
def test_a_padded_batch_gives_what_each_sequence_gives_alone(choice, t):
    attention = build(choice)
    q, k, v = random_qkv(t)
    lengths = torch.tensor([t, max(1, t // 2)])
    outputs = attention.bidirectional(q, k, v, lengths)
    for i, length in enumerate(lengths):
        alone = attention.bidirectional(*(x[i : i + 1, :length] for x in (q, k, v)))
        torch.testing.assert_close(outputs[i : i + 1, :length], alone)


@pytest.mark.parametrize("choice", ENCODERS, ids=" ".join)
def test_gradients_agree_with_the_definition_and_padding_has_none(choice):
    attention = build(choice)
    inputs = [x.requires_grad_() for x in random_qkv(9)]
    lengths = torch.tensor([9, 4])
    weight = torch.randn(2, 9, HEADS, WIDTH, dtype=torch.float64)
    weight[1, 4:] = 0
    ours = attention.bidirectional(*inputs, lengths)
    exact = definition(attention, *inputs, lengths)
    options = {"allow_unused": True, "materialize_grads": True}
    first = torch.autograd.grad((ours * weight).sum(), inputs, **options)
    second = torch.autograd.grad((exact * weight).sum(), inputs, **options)
    torch.testing.assert_close(first, second)
    assert all((gradient[1, 4:] == 0).all() for gradient in first)


@pytest.mark.parametrize("choice", DECODERS, ids=" ".join)
def test_a_memory_is_read_by_any_number_of_queries(choice):
    """All at once or one at a time, as a decoder does."""
    attention = build(choice)
    _, k, v = random_qkv(65)
    q = random_qkv(7)[0]
    memory = attention.summarize(k, v, LENGTHS)
    outputs = attention.read(q, memory)
    torch.testing.assert_close(outputs, definition(attention, q, k, v, LENGTHS))
    single = torch.cat([attention.read(q[:, i : i + 1], memory) for i in range(7)], dim=1)
    torch.testing.assert_close(single, outputs)


def test_linear_attentions_memory_has_one_size():
    attention = build(("model=linear",))
    sizes = {tuple(x.shape for x in attention.summarize(*random_qkv(s)[1:])) for s in (1, 64, 1000)}
    assert len(sizes) == 1
