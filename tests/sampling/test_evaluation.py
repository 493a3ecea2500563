"""What `forward` says of steppers and of sequences."""

import math
from functools import partial

import pytest
import torch

from linear_transformers.attention import LinearAttention, SoftmaxAttention
from linear_transformers.distributions import Categorical
from linear_transformers.feature_maps import Elu
from linear_transformers.sampling import (
    RecomputedStepper,
    RecurrentStepper,
    bits_per_dim,
    largest_step_difference,
)
from tests.conftest import autoregressive

LENGTH, NUM_VALUES = 24, 17


def build(attention):
    return autoregressive(
        attention, num_values=NUM_VALUES, max_length=LENGTH, num_layers=2, num_heads=4,
        model_dim=64, num_parameters=NUM_VALUES,
    ).eval()  # fmt: skip


@pytest.mark.parametrize("attention", [partial(LinearAttention, feature_map=Elu), SoftmaxAttention])
def test_the_check_sees_a_step_that_differs_from_forward(attention, monkeypatch):
    model, values = build(attention), torch.randint(0, NUM_VALUES, (2, LENGTH))
    for kind in (RecurrentStepper, RecomputedStepper):
        assert largest_step_difference(kind(model), values) < 1e-5
    layer = model.stack.blocks[1].mixer.attention
    step = layer.step
    monkeypatch.setattr(layer, "step", lambda q, k, v, state: step(q, k, 1.01 * v, state))
    assert largest_step_difference(RecurrentStepper(model), values) > 1e-4


def test_a_model_that_training_compiled_is_recomputed_in_pytorch():
    """At the length of every step, compiling would begin anew, and be part of what is timed."""
    model, values = build(SoftmaxAttention), torch.randint(0, NUM_VALUES, (2, LENGTH))
    expected = RecomputedStepper(model).prefill(values)[0]

    def refuse(*_):
        raise AssertionError("it was compiled")

    model.compile(backend=refuse)
    torch.testing.assert_close(RecomputedStepper(model).prefill(values)[0], expected)


def test_the_check_sees_nan(monkeypatch):
    model, values = build(SoftmaxAttention), torch.randint(0, NUM_VALUES, (2, LENGTH))
    torch.nn.init.constant_(model.head.bias, math.nan)
    assert math.isnan(largest_step_difference(RecurrentStepper(model), values))


def test_bits_are_counted_over_all_values_and_over_hidden_ones():
    model, values = build(SoftmaxAttention), torch.randint(0, NUM_VALUES, (5, LENGTH))
    known = torch.arange(LENGTH) < 9
    whole, hidden = bits_per_dim(model, Categorical(NUM_VALUES), values, known)
    logits = model(model.with_start(values)[:, :-1])
    chosen = logits.log_softmax(-1).gather(-1, values.unsqueeze(-1)).squeeze(-1)
    bits = -chosen / math.log(2)
    assert whole == pytest.approx(bits.mean(1).tolist(), rel=1e-5)
    assert hidden == pytest.approx(bits[:, 9:].mean(1).tolist(), rel=1e-5)
