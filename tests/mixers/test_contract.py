"""The promises of `linear_transformers.testing`, for every mixer and every choice of its parts."""

from functools import partial

import pytest
import torch

from linear_transformers.attention import (
    AdditiveAttention,
    LinearAttention,
    LshAttention,
    SoftmaxAttention,
    SparseAttention,
    WindowAttention,
)
from linear_transformers.attention.states import bytes_of
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import (
    LSTM,
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    MultiHeadAttention,
    MultiScaleRetention,
)
from linear_transformers.mixers.multi_head import NORM_EPS
from linear_transformers.testing import (
    HEADS,
    WIDTH,
    name_of,
    of_heads,
    promises_of,
    random_inputs,
    stepped,
)

PARTS = {
    "plain": {},
    "convolution": {"short_convolution": 4},
    "one tap": {"short_convolution": 1},
    "rotary": {"rotary": True},
    "norms": {"qk_norm": "rms", "output_norm": True},
    "l2 and gate": {"qk_norm": "l2", "output_gate": "silu"},
    "all": {
        "short_convolution": 3, "rotary": True, "qk_norm": "rms", "output_norm": True,
        "output_gate": "sigmoid", "low_rank_gate": True,
    },
}  # fmt: skip
ATTENTIONS = {"linear": partial(LinearAttention, feature_map=Elu), "softmax": SoftmaxAttention}
MIXERS = {
    f"{attention} {parts}": partial(MultiHeadAttention, attention=ATTENTIONS[attention], **options)
    for attention in ATTENTIONS
    for parts, options in PARTS.items()
} | {
    f"{attention} {parts}, grouped": partial(
        MultiHeadAttention,
        attention=partial(ATTENTIONS[attention], num_key_heads=1),
        **PARTS[parts],
    )
    for attention in ATTENTIONS
    for parts in ("plain", "all")
} | {
    "lstm": LSTM,
    "retention": MultiScaleRetention,
    "retention, plain": partial(
        MultiScaleRetention, rotary=False, short_convolution=4, chunk_size=8, output_gate=None
    ),
    "gla": GatedLinearAttention,
    "gla, convolution": partial(GatedLinearAttention, short_convolution=4, expand_k=1.0),
    "delta": partial(DeltaNet, chunk_size=16),
    "delta, gated": partial(DeltaNet, short_convolution=None, output_gate="silu", expand_v=2.0),
    "gated delta": GatedDeltaNet,
    "gated delta, small chunks": partial(GatedDeltaNet, chunk_size=8),
    "kimi": KimiDeltaAttention,
    "kimi, all": partial(
        KimiDeltaAttention, rotary=True, low_rank_gate=False, chunk_size=5
    ),
    "retention, grouped": partial(MultiScaleRetention, num_key_heads=1),
    "kimi, grouped": partial(KimiDeltaAttention, num_key_heads=1),
    "gla, all": partial(
        GatedLinearAttention, rotary=True, qk_norm="l2", output_norm=False, low_rank_gate=True,
        expand_k=1.0,
    ),
}  # fmt: skip
# Not in half precision, whose queries may fall into other buckets.
OTHERS = {
    f"{name} all": partial(MultiHeadAttention, attention=attention, **PARTS["all"])
    for name, attention in {
        "lsh": partial(LshAttention, num_buckets=2, window=4),
        "sparse": partial(SparseAttention, stride=4),
        "window": partial(WindowAttention, window=5),
        "additive": AdditiveAttention,
    }.items()
}
ALL = MIXERS | OTHERS
BIDIRECTIONAL = [name for name in ALL if ALL[name](24, 3).is_bidirectional]


def build(name: str):
    torch.manual_seed(0)
    return of_heads(ALL[name])(HEADS, WIDTH).double().eval()


@pytest.mark.parametrize(
    ("name", "promise"),
    [
        pytest.param(name, promise, id=f"{name}: {name_of(promise)}")
        for name in ALL
        for promise in promises_of(of_heads(ALL[name]))
    ],
)
def test_promises_are_kept(name, promise):
    torch.manual_seed(0)
    promise(of_heads(ALL[name]))


@pytest.mark.parametrize("name", ALL)
def test_every_weight_has_a_gradient(name):
    """Several devices wait for that of each."""
    mixer = build(name)
    mixer(*random_inputs(mixer, 5)).sum().backward()
    for weight, parameter in mixer.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MIXERS)
def test_half_precision_does_not_forget_at_length(name, dtype):
    """Sums over 784 positions are kept in float32: in half of the type, they are lost. In all
    forms, against float64 with the weights and inputs of the half."""
    mixer = build(name).to(dtype)
    exact = build(name)
    exact.load_state_dict(mixer.state_dict())
    (x,) = (part.to(dtype) for part in random_inputs(mixer, 784, b=1))
    with torch.no_grad():
        expected = exact(x.double())
        first, state = mixer.prefill(x[:, :700])
        rest = stepped(mixer, (x[:, 700:],), state)
        for found in (mixer(x), torch.cat([first, rest], dim=1)):
            assert found.dtype == dtype
            error = (found.double() - expected).norm() / expected.norm()
            assert error < 4 * torch.finfo(dtype).eps, f"{error:.2e}"


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_padding_is_not_seen_by_those_that_see_everything(name):
    mixer = build(name)
    (x,) = random_inputs(mixer, 21)
    lengths = torch.tensor([21, 13])
    padded = x.clone()
    padded[1, 13:] = torch.nan
    outputs = mixer.bidirectional(padded, lengths)
    torch.testing.assert_close(outputs[0], mixer.bidirectional(x)[0])
    torch.testing.assert_close(outputs[1, :13], mixer.bidirectional(x[1:, :13])[0])


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_those_that_see_everything_see_both_sides(name):
    mixer = build(name)
    (x,) = random_inputs(mixer, 9, b=1)
    x.requires_grad_()
    (seen,) = torch.autograd.grad(mixer.bidirectional(x)[0, 4].sum(), x)
    assert (seen[0].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_rotary_positions_tell_distances_only(attention):
    """Later by 7 everywhere is the same, in what the weights are of."""
    mixer = build(f"{attention} rotary")
    (x,) = random_inputs(mixer, 12)
    state = mixer.init_state(2, dtype=torch.float64)
    outputs, _ = mixer.prefill(x, state)
    shifted, _ = mixer.prefill(x, state._replace(position=7))
    torch.testing.assert_close(shifted, outputs)
    still = build(f"{attention} plain")
    assert not torch.allclose(still(x), outputs)


@pytest.mark.parametrize("gate", [None, "silu", "sigmoid"])
@pytest.mark.parametrize("qk_norm", [None, "rms", "l2"])
@pytest.mark.parametrize("width", [None, 4])
def test_parts_are_what_they_are_defined_as(width, qk_norm, gate):
    """Softmax attention, head by head and weight by weight, in float64."""
    torch.manual_seed(0)
    mixer = MultiHeadAttention(
        HEADS * WIDTH, HEADS, attention=SoftmaxAttention, short_convolution=width, qk_norm=qk_norm,
        output_norm=gate is not None, output_gate=gate,
    ).double()  # fmt: skip
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter)
    (x,) = random_inputs(mixer, 11)
    mixed, gated = (x @ mixer.project_in.weight.T + mixer.project_in.bias).tensor_split(
        [3 * HEADS * WIDTH], -1
    )
    if width is not None:
        padded = torch.nn.functional.pad(mixed, (0, 0, width - 1, 0))
        mixed = sum(padded[:, j : j + 11] * mixer.convolution.weight[j] for j in range(width))
    q, k, v = mixed.unflatten(-1, (3, HEADS, WIDTH)).unbind(2)
    if qk_norm == "rms":
        q, k = (
            part / (part.square().mean(-1, keepdim=True) + NORM_EPS).sqrt() * scale
            for part, scale in ((q, mixer.q_scale), (k, mixer.k_scale))
        )
    elif qk_norm == "l2":
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / WIDTH**0.5
    unseen = torch.ones(11, 11, dtype=torch.bool).triu(1)
    outputs = torch.einsum("bhij,bjhd->bihd", scores.masked_fill(unseen, -torch.inf).softmax(-1), v)
    if gate is not None:
        outputs = outputs / (outputs.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
        outputs = outputs * mixer.output_norm
    y = outputs.flatten(2)
    if gate is not None:
        y = y * torch.sigmoid(gated) * (gated if gate == "silu" else 1)
    torch.testing.assert_close(mixer(x), y @ mixer.project_out.weight.T + mixer.project_out.bias)


def test_one_tap_of_one_is_no_convolution():
    mixer, plain = build("linear one tap"), build("linear plain")
    torch.nn.init.ones_(mixer.convolution.weight)
    plain.load_state_dict(mixer.state_dict(), strict=False)
    (x,) = random_inputs(mixer, 17)
    torch.testing.assert_close(mixer(x), plain(x))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(MIXERS["linear plain"], 16, 3), ("model_dim=16", "num_heads=3", "width that")),
        (partial(MIXERS["linear plain"], 16, 4, qk_norm="max"), ("qk_norm=max", "rms")),
        (partial(MIXERS["linear plain"], 16, 4, output_gate="relu"), ("output_gate=relu", "silu")),
        (partial(MIXERS["linear plain"], 16, 4, short_convolution=0), ("short_convolution=0", "1")),
        (partial(MultiHeadAttention, 16, 4, rotary=True,
                 attention=partial(LinearAttention, feature_map=Elu, kernel="parallel")),
         ("kernel=parallel", "rotary", "kernel=auto")),
        (partial(GatedDeltaNet, 16, 8), ("expand_k=0.75", "num_heads=8", "is 32")),
        (partial(DeltaNet, 64, 3), ("model_dim=64", "num_heads=3", "63")),
        (partial(DeltaNet, 16, 4, expand_v=0.0), ("expand_v=0.0", "above 0")),
        (partial(DeltaNet, 16, 4, num_key_heads=0), ("num_key_heads=0", "at least 1")),
        (partial(DeltaNet, 16, 4, qk_norm=None), ("qk_norm=None", "qk_norm=l2")),
        (partial(KimiDeltaAttention, 16, 4, qk_norm="rms"), ("qk_norm=rms", "without bound")),
        (partial(KimiDeltaAttention, 16, 4, chunk_size=33), ("chunk_size=33", "at most 32")),
        (partial(KimiDeltaAttention, 16, 4, output_gate="tanh"), ("output_gate=tanh", "sigmoid")),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make, words, raises_one_line):
    with raises_one_line(*words):
        make()


def test_what_runs_is_named_where_features_are_rotated():
    assert build("linear all").kernel_on(torch.device("cpu")) == "chunkwise"


def test_vectors_of_another_width_are_refused(raises_one_line):
    mixer = build("gated delta")
    for call in (mixer, mixer.prefill):
        with raises_one_line("GatedDeltaNet", "[2, 24, 5]", "width 24"):
            call(torch.zeros(2, 24, 5, dtype=torch.float64))


def test_rotary_positions_of_odd_heads_are_refused(raises_one_line):
    mixer = MultiHeadAttention(9, 3, attention=SoftmaxAttention, rotary=True)
    with raises_one_line("there are 3 of a head", "rotary=false"):
        mixer(torch.zeros(1, 2, 9))


def with_groups(kind: str, **options):
    """Return a factory of four heads, as `options` group them."""
    if kind in ATTENTIONS:
        attention = partial(ATTENTIONS[kind], **options)
        return partial(MultiHeadAttention, 32, 4, attention=attention, short_convolution=3)
    return partial(MIXERS[kind], 32, 4, **options)


def rows_of_four(grouped) -> torch.Tensor:
    """Return the rows of queries, keys and values of a projection, those of two heads twice."""
    rows, start = [], 0
    for heads, width in zip((4, 2, 2), grouped.head_dims, strict=True):
        part = torch.arange(start, start + heads * width).view(heads, width)
        rows.append(part.repeat_interleave(4 // heads, 0).flatten())
        start += heads * width
    return torch.cat(rows)


@pytest.mark.parametrize(
    "kind", [*ATTENTIONS, "retention, plain", "gla", "delta", "gated delta", "kimi"]
)
def test_grouped_queries_are_heads_whose_keys_and_values_are_equal(kind):
    """With half the state, the outputs of four heads whose weights say so."""
    torch.manual_seed(0)
    grouped = with_groups(kind, num_key_heads=2)().double().eval()
    torch.manual_seed(0)
    whole = with_groups(kind)().double().eval()
    weights = dict(grouped.state_dict())
    mixed = rows_of_four(grouped)
    gate = torch.arange(len(mixed), whole.project_in.out_features)
    for name, weight in whole.state_dict().items():
        given = weights[name]
        if name.startswith("project_in"):
            weights[name] = torch.cat([given[mixed], given[len(given) - len(gate) :]])
        elif name == "convolution.weight":
            weights[name] = given[:, mixed]
        elif given.shape != weight.shape:  # of gates: a part for each head of keys
            weights[name] = given.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    whole.load_state_dict(weights)
    if kind.startswith("retention"):  # decays that are not learned
        whole.gates = lambda x: tuple(g.repeat_interleave(2, -2) for g in grouped.gates(x))
    x = torch.randn(2, 21, 32, dtype=torch.float64)
    torch.testing.assert_close(grouped(x), whole(x))
    torch.testing.assert_close(
        stepped(grouped, (x,), grouped.init_state(2, dtype=x.dtype)), whole(x)
    )
    half, full = (bytes_of(each.init_state(1, capacity=50).past) for each in (grouped, whole))
    assert half * 2 == full


@pytest.mark.parametrize("kind", [*ATTENTIONS, "kimi"])
def test_heads_that_do_not_divide_into_groups_are_refused(kind, raises_one_line):
    with raises_one_line("num_key_heads=3 does not divide num_heads=4", "one of [1, 2, 4]"):
        with_groups(kind, num_key_heads=3)()
