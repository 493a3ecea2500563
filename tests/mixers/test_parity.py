"""The published layers, written out as flash-linear-attention has them, around its references.

With one set of weights, its pure-PyTorch operators, which compute in float32, and our layers give
one function: outputs, and the gradients of inputs and weights, to 1e-5 of the largest of each.
"""

import importlib

import pytest
import torch
import torch.nn.functional as F

from linear_transformers.mixers import (
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    MultiScaleRetention,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of a machine without a GPU
WIDTH, HEADS, BATCH = 32, 4, 2


def theirs(operator: str, name: str):
    module = f"fla.ops.{operator}.naive"
    return getattr(pytest.importorskip(module, reason="fla-core is optional"), name)


def projected(mixer, x):
    """Queries, keys, values [b, t, h, .] and the gate's input, each by a projection of its own."""
    sizes = [HEADS * mixer.key_dim] * 2 + [HEADS * mixer.value_dim]
    beside = mixer.output_gate is not None and not mixer.low_rank_gate
    matrices = mixer.project_in.weight.split(sizes + sizes[2:] * beside)
    q, k, v = (F.linear(x, matrix) for matrix in matrices[:3])
    gate = F.linear(x, matrices[3]) if beside else None
    if mixer.low_rank_gate:
        narrow, widen = mixer.project_gate
        gate = F.linear(F.linear(x, narrow.weight), widen.weight, widen.bias)
    if mixer.convolution is not None:
        taps = mixer.convolution.weight.split(sizes, dim=1)
        q, k, v = (F.silu(convolved(part, w)) for part, w in zip((q, k, v), taps, strict=True))
    return *(part.unflatten(-1, (HEADS, -1)) for part in (q, k, v)), gate


def convolved(x, weight):
    """torch's own depthwise convolution, without the outputs that look ahead."""
    width = len(weight)
    out = F.conv1d(x.mT, weight.T.unsqueeze(1), groups=x.shape[-1], padding=width - 1)
    return out[..., : x.shape[1]].mT


def finished(mixer, o, gate, activation):
    """RMSNorm of each head, the gate, the projection to the outputs."""
    o = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * mixer.output_norm
    o = o.flatten(-2)
    return F.linear(o if gate is None else o * activation(gate), mixer.project_out.weight)


def unit(x):
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def turned(x):
    """Pairs of halves turned by position, as complex numbers."""
    a, b = x.chunk(2, dim=-1)
    count = a.shape[-1]
    rate = 10_000.0 ** (-torch.arange(count) / count)
    angle = torch.arange(x.shape[1]).unsqueeze(-1) * rate
    z = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle).unsqueeze(1)
    return torch.cat([z.real, z.imag], dim=-1)


def retention(mixer, x):
    q, k, v, gate = projected(mixer, x)
    q, k, v = (part.transpose(1, 2) for part in (turned(q), turned(k), v))
    o = theirs("retention", "naive_retention")(q, k, v).transpose(1, 2)
    return finished(mixer, o, gate, F.silu)


def gla(mixer, x):
    q, k, v, gate = projected(mixer, x)
    narrow, widen = mixer.decay
    logits = F.linear(F.linear(x, narrow.weight), widen.weight, widen.bias)
    decay = F.logsigmoid(logits).unflatten(-1, (HEADS, -1)) / 16
    o, _ = theirs("gla", "naive_recurrent_gla")(q, k, v, decay)
    return finished(mixer, o, gate, F.silu)


def delta(mixer, x):
    q, k, v, gate = projected(mixer, x)
    beta = F.linear(x, mixer.strength.weight).sigmoid()
    by_head = [part.transpose(1, 2) for part in (unit(q), unit(k), v, beta)]
    o, _ = theirs("delta_rule", "delta_rule_recurrence")(*by_head)
    return finished(mixer, o.transpose(1, 2), gate, F.silu)


def log_decay(mixer, logits):
    rate, bias = mixer.decay.log_rate, mixer.decay.bias
    return -rate.exp() * F.softplus(logits.unflatten(-1, bias.shape) + bias)


def gated_delta(mixer, x):
    q, k, v, gate = projected(mixer, x)
    beta = F.linear(x, mixer.strength.weight).sigmoid()
    g = log_decay(mixer, F.linear(x, mixer.decay.project.weight)).squeeze(-1)
    recurrence = theirs("gated_delta_rule", "naive_recurrent_gated_delta_rule")
    o, _ = recurrence(unit(q), unit(k), v, beta, g)
    return finished(mixer, o, gate, F.silu)


def kimi(mixer, x):
    q, k, v, gate = projected(mixer, x)
    beta = F.linear(x, mixer.strength.weight).sigmoid()
    narrow, widen = mixer.decay.project
    g = log_decay(mixer, F.linear(F.linear(x, narrow.weight), widen.weight))
    o, _ = theirs("kda", "naive_recurrent_kda")(unit(q), unit(k), v, g, beta)
    return finished(mixer, o, gate, torch.sigmoid)


PUBLISHED = {
    MultiScaleRetention: retention,
    GatedLinearAttention: gla,
    DeltaNet: delta,
    GatedDeltaNet: gated_delta,
    KimiDeltaAttention: kimi,
}


@pytest.mark.parametrize("t", [1, 5, 65, 130])
@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind.__name__)
def test_a_published_layer_is_that_of_flash_linear_attention(kind, t):
    torch.manual_seed(t)
    mixer = kind(WIDTH, HEADS)
    x = torch.randn(BATCH, t, WIDTH, requires_grad=True)
    weight = torch.randn(BATCH, t, WIDTH)

    def results(y):
        wanted = [x, *mixer.parameters()]
        return y, *torch.autograd.grad((y * weight).sum(), wanted, materialize_grads=True)

    for ours, published in zip(results(mixer(x)), results(PUBLISHED[kind](mixer, x)), strict=True):
        bound = 1e-5 * published.abs().max().item()
        torch.testing.assert_close(ours, published, rtol=0, atol=bound)


def test_every_published_layer_is_compared():
    layers = importlib.import_module("linear_transformers.mixers.fast_weights")
    found = {
        kind
        for kind in vars(layers).values()
        if isinstance(kind, type) and issubclass(kind, layers.FastWeights)
    }
    assert found - {layers.FastWeights} == set(PUBLISHED)
