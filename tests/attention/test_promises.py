"""What single backends promise beyond the contract, or declare that they do not keep."""

from functools import partial

import jaxtyping
import pytest
import torch

from linear_transformers.attention import (
    CausalAttention,
    LinearAttention,
    LshAttention,
    SoftmaxAttention,
    WindowAttention,
)
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import LSTM, DeltaNet
from linear_transformers.models import Transformer
from linear_transformers.testing import check_attention, random_qkv, tensors
from tests.attention.choices import KEY_GATED, build, choices
from tests.conftest import attending


def changed_before(attention: CausalAttention, j: int, t: int = 128) -> float:
    """The share of outputs before position j that change when positions from j on do."""
    inputs = random_qkv(t)
    others = [x.clone() for x in inputs]
    for x in others:
        x[:, j:] = torch.randn_like(x[:, j:])
    before, after = attention(*inputs)[:, :j], attention(*others)[:, :j]
    return ((before - after).abs() > 1e-9).any(-1).double().mean().item()


def test_reformer_sees_the_future_and_the_honest_form_does_not():
    """As it was published, LSH attention is no autoregressive model, whatever its mask."""
    option = "model.mixer.attention"
    small = f"{option}.num_buckets=2"
    assert changed_before(build(("model=reformer4", small, f"{option}.chunk=8")), 60) > 0.5
    assert changed_before(build(("model=lsh4", small, f"{option}.window=8")), 60) == 0


def test_only_reformer_declares_that_it_is_not_causal():
    leaking = {choice[0] for choice in choices() if not build(choice).exactly_causal}
    assert leaking == {"model=reformer1", "model=reformer4"}


def test_only_fast_weights_declare_that_their_weights_do_not_sum_to_one():
    unnormalised = {choice for choice in choices() if not build(choice).weights_sum_to_one}
    assert unnormalised == set(KEY_GATED)


def test_unscaled_scores_are_a_choice():
    q, k, v = random_qkv(9)
    plain = build(("model=softmax", "model.mixer.attention.scale=1"))
    default = build(("model=softmax",))
    torch.testing.assert_close(plain(q, k, v), default(q * q.shape[-1] ** 0.5, k, v))


def test_a_vector_alone_in_its_bucket_attends_to_itself():
    attention = build(("model=lsh4",))
    q, k, v = random_qkv(1)
    torch.testing.assert_close(attention(q, k, v), v)


@pytest.mark.parametrize("option", ["scale=0.7", "num_key_heads=1"])
@pytest.mark.parametrize("name", ["taylor", "polynomial"])
def test_short_sequences_by_products_are_those_by_features(name, option):
    """On either side of the length at which a map's features become the cheaper way."""
    choice = ("model=linear", f"model/feature_map={name}", f"model.mixer.attention.{option}")
    short, features = build(choice), build((*choice, "model.mixer.attention.kernel=parallel"))
    width = short.feature_map.feature_dim
    cpu = torch.device("cpu")
    assert (
        short.kernel_on(cpu)
        == f"{build(('model=linear',)).kernel_on(cpu)} beyond {width} positions"
    )
    assert features.kernel_on(cpu) == "parallel"
    for t in (1, 2, width, width + 1):
        q, k, v = (x.requires_grad_() for x in random_qkv(t))
        k, v = (x[:, :, : short.num_key_heads] for x in (k, v))
        lengths = torch.tensor([t, max(1, t // 2)])
        for form in (
            lambda a, q=q, k=k, v=v: a(q, k, v),
            lambda a, q=q, k=k, v=v, n=lengths: a.bidirectional(q, k, v, n)[:, : n[1]],
        ):
            found, expected = form(short), form(features)
            torch.testing.assert_close(found, expected)
            noise = torch.randn_like(expected)
            of_q = [torch.autograd.grad(x, (q, k, v), noise) for x in (found, expected)]
            torch.testing.assert_close(*of_q)


def test_a_kernel_that_is_set_later_is_looked_at_too(raises_one_line):
    attention = build(("model=linear",))
    attention.kernel = "Triton"
    with raises_one_line("kernel=Triton is unknown", "triton"):
        attention.kernel_on(torch.device("cpu"))


def test_products_are_summed_in_float32():
    """In bfloat16 a square of a product would keep 8 bits."""
    attention = build(("model=linear", "model/feature_map=taylor"))
    q, k, v = random_qkv(40)
    exact = attention(q, k, v)
    low = attention(*(x.bfloat16() for x in (q, k, v)))
    assert low.dtype == torch.bfloat16
    assert (low.double() - exact).abs().max() < 0.05
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (attention(q.float(), k.float(), v.float()) - exact).abs().max() < 1e-5


def bytes_after(attention: CausalAttention, t: int) -> int:
    _, state = attention.prefill(*random_qkv(t, b=1))
    return sum(x.nbytes for x in tensors(state))


def test_lsh_state_is_bounded_and_sparse_computes_few_scores():
    attention = build(("model=lsh1",))
    assert bytes_after(attention, 1) == bytes_after(attention, 3000)
    sparse = build(("model=sparse", "model.mixer.attention.stride=32"))
    assert len(sparse.visible_to(1023, **sparse.numbers)) == 32 + 1023 // 32


def test_state_sizes_are_those_of_the_states():
    for choice in choices():
        attention = build(choice)
        assert attention.state_bytes(33, torch.float64) == bytes_after(attention, 33), choice


def test_only_the_fixed_pattern_has_a_summary(raises_one_line):
    small = ("model=sparse", "model.mixer.attention.stride=4")  # summary=8
    assert build(small).numbers["stride"] == 4
    with raises_one_line("stride=4", "summary=8", "pattern=fixed"):
        build((*small, "model.mixer.attention.pattern=fixed"))
    with raises_one_line("stride=0", "at least 1"):
        build(("model=sparse", "model.mixer.attention.stride=0"))


def test_the_gate_of_gated_attention_stays_within_float32():
    """At the fastest decay there is, a chunk neither overflows nor loses its last position."""
    (gated,) = (choice for choice in KEY_GATED if choice[1].endswith("GatedLinearAttention"))
    attention = build(gated).float()
    torch.nn.init.constant_(attention.gate.bias, -1e4)
    q, k, v = random_qkv(65, dtype=torch.float32)
    outputs = attention(q, k, v)
    state = attention.init_state(2)
    for i in range(65):
        expected, state = attention.step(q[:, i], k[:, i], v[:, i], state)
        torch.testing.assert_close(outputs[:, i], expected, rtol=1e-4, atol=1e-4)


def test_a_step_without_gradients_leaves_what_a_backward_pass_reads():
    """Where the keys need no gradient, the cache does not either."""
    attention = SoftmaxAttention(2, 8)
    q, k, v = (x[:, 0] for x in random_qkv(1, h=2, d=8))
    q.requires_grad_()
    output, state = attention.step(q, k, v, attention.init_state(len(q), dtype=q.dtype, capacity=8))
    with torch.no_grad():
        attention.step(q, k, v, state)
    (gradient,) = torch.autograd.grad(output.sum(), q)
    torch.testing.assert_close(gradient, torch.zeros_like(q))  # of one value, whatever its weight


def test_a_slice_of_a_cache_which_would_share_its_memory_is_refused(monkeypatch):
    """Either would write its next keys over the other's."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users call
    state = SoftmaxAttention(2, 8).init_state(3, capacity=4)
    with pytest.raises(TypeError, match="must be Tensor, not slice"):
        state.select(slice(2))


def test_what_would_be_wrong_in_silence_or_in_torchs_words_is_refused(raises_one_line):
    attention = build(("model=linear",))
    q, k, v = random_qkv(5)
    with raises_one_line("torch.int64", "x.float()"):
        attention.check(q, k, v.long())
    with raises_one_line("[5]", "takes [batch, time"):
        attention.check(*(x[0, :, 0, 0] for x in (q, k, v)))
    for narrow, wide in (
        (LinearAttention(1, 4, feature_map=Elu), LinearAttention(2, 4, feature_map=Elu)),
        (WindowAttention(2, 4, window=9), WindowAttention(2, 4, window=5)),
        (LshAttention(2, 4, window=9), LshAttention(2, 4, window=5)),
        (LshAttention(2, 4, num_buckets=4), LshAttention(2, 4)),
        (SoftmaxAttention(2, 4, num_key_heads=1), SoftmaxAttention(2, 4)),
    ):
        state = narrow.init_state(1)
        for form, shape in ((wide.step, (1, 2, 4)), (wide.prefill, (1, 3, 2, 4))):
            with raises_one_line("Give the state of this layer"):
                form(*torch.zeros(3, *shape), state)
    for narrow, wide in (
        (DeltaNet(16, 4), DeltaNet(16, 2)),
        (DeltaNet(16, 2, short_convolution=3), DeltaNet(16, 2)),
        (LSTM(1, 1), LSTM(16, 2)),
    ):
        state = narrow.init_state(1)
        for form, shape in ((wide.step, (1, 16)), (wide.prefill, (1, 3, 16))):
            with raises_one_line("Give the state of this layer"):
                form(torch.zeros(shape), state)
    with raises_one_line("is one already: give its class, Elu"):
        LinearAttention(2, 4, feature_map=Elu(4))
    with raises_one_line("16 wide", "input_dim=8"):
        Transformer(DeltaNet, 8, num_layers=1, num_heads=2, model_dim=16)(torch.randn(1, 2, 16))
    with raises_one_line("no position"):
        DeltaNet(16, 2)(torch.randn(1, 0, 16))
    with raises_one_line("no position"):
        LSTM(16, 2)(torch.randn(1, 0, 16))


def test_padding_that_is_no_number_changes_no_gradient_of_an_encoder():
    stack = Transformer(
        attending(LinearAttention, feature_map=Elu), num_layers=2, num_heads=2, model_dim=8,
        causal=False, positions="added",
    ).double().eval()  # fmt: skip
    x, lengths = torch.randn(2, 6, 8, dtype=torch.float64), torch.tensor([6, 4])
    found = []
    for padding in (0.0, torch.nan):
        x[1, 4:] = padding
        outputs = stack(x, lengths)
        loss = outputs[0].square().sum() + outputs[1, :4].square().sum()
        found.append(torch.autograd.grad(loss, [*stack.parameters()]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("attention", [partial(LinearAttention, feature_map=Elu), SoftmaxAttention])
def test_grouped_queries_can_be_held_to_the_promises(attention):
    check_attention(partial(attention, num_key_heads=1))
