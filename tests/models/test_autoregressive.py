"""The model keeps attention's contract as a whole, for every choice it offers."""

from functools import partial

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from linear_transformers.attention import LinearAttention, SoftmaxAttention, WindowAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import DeltaNet, MultiHeadAttention
from linear_transformers.models import AutoregressiveTransformer, Block, Transformer
from linear_transformers.models.positions import sinusoids
from linear_transformers.ops.pieces import Piece
from linear_transformers.testing import tensors
from tests.conftest import autoregressive

ATTENTIONS = {
    "linear": partial(LinearAttention, feature_map=Elu),
    "softmax": SoftmaxAttention,
}
LENGTH, NUM_VALUES = 33, 5


def build(attention: str = "linear", **options) -> AutoregressiveTransformer:
    sizes = {"num_layers": 2, "num_heads": 2, "model_dim": 16, "num_parameters": 7}
    whole = sizes | {"max_length": LENGTH} | options
    return autoregressive(ATTENTIONS[attention], num_values=NUM_VALUES, **whole).eval()


def tokens_of(model: AutoregressiveTransformer, batch: int = 3) -> torch.Tensor:
    return model.with_start(torch.randint(0, NUM_VALUES, (batch, LENGTH)))[:, :-1]


@pytest.fixture(params=ATTENTIONS)
def attention(request) -> str:
    return request.param


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ["concatenated", "added", "learned", "axial"])
def test_stepping_reproduces_forward(attention, positions, norm):
    model = build(attention, positions=positions, norm=norm, max_length=(3, 11)).double()
    tokens = tokens_of(model)
    state = model.init_state(len(tokens))
    outputs = []
    for i in range(LENGTH):
        output, state = model.step(tokens[:, i], state)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs, dim=1), model(tokens))
    assert state.position == LENGTH


@pytest.mark.parametrize("norm_type", ["layer", "rms"])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_stepping_reproduces_forward_with_every_part(attention, norm_type, activation):
    parts = {"short_convolution": 4, "rotary": True, "qk_norm": "rms", "output_gate": "silu"}
    model = build(attention, parts=parts, norm_type=norm_type, activation=activation).double()
    tokens = tokens_of(model)
    expected = model(tokens)
    _, state = model.prefill(tokens[:, :9])
    for i in range(9, LENGTH):
        output, state = model.step(tokens[:, i], state)
        torch.testing.assert_close(output, expected[:, i])


def hybrid(**options) -> AutoregressiveTransformer:
    """Linear attention, and in every second layer softmax attention to five positions."""
    local = partial(MultiHeadAttention, attention=partial(WindowAttention, window=5))
    parts = {"short_convolution": 4, "output_gate": "silu"}
    options = {"num_layers": 4, "positions": "none", "local": local, "local_every": 2, **options}
    return build(parts=parts, **options).double()


def test_a_hybrid_steps_prefills_and_forks_as_it_was_trained():
    model = hybrid()
    tokens = tokens_of(model)
    expected = model(tokens)
    first, state = model.prefill(tokens[:, :9])
    torch.testing.assert_close(first, expected[:, :9])
    state = model.select(state, torch.tensor([2, 0, 0]))
    for i in range(9, LENGTH):
        output, state = model.step(tokens[[2, 0, 0], i], state)
        torch.testing.assert_close(output, expected[[2, 0, 0], i])


def test_a_hybrid_says_what_it_is_of():
    stack = hybrid().stack
    kinds = [mixer.name for mixer in stack.mixers]
    assert kinds == ["LinearAttention", "WindowAttention"] * 2
    assert stack.description == "4 layers of LinearAttention and WindowAttention"
    assert stack.constant_state
    assert stack.exactly_causal
    assert stack.state_bytes(1) == stack.state_bytes(1000)
    assert not hybrid(
        local=partial(MultiHeadAttention, attention=SoftmaxAttention)
    ).stack.constant_state


@pytest.mark.parametrize(
    ("window", "max_length", "found"),
    [
        (None, (4, 3, 1), 6),
        (None, (2, 2, 3), 12),
        (5, (4, 3, 1), 5),
        (None, (LENGTH,), 128),
        (None, LENGTH, 128),
        (None, None, 128),
    ],
)
def test_a_window_is_two_rows_of_an_image_where_none_is_given(window, max_length, found):
    local = partial(MultiHeadAttention, attention=partial(WindowAttention, window=window))
    model = hybrid(local=local, max_length=max_length)
    assert [mixer.attention.window for mixer in model.stack.mixers[1::2]] == [found] * 2
    tokens = tokens_of(model)[:, :12]
    _, state = model.prefill(tokens[:, :5])
    for i in range(5, 12):
        output, state = model.step(tokens[:, i], state)
        torch.testing.assert_close(output, model(tokens)[:, i])
    assert state.layers[1].past.keys.shape[2] == found


def test_a_hybrids_kernels_are_those_of_all_its_layers(raises_one_line, no_triton_on_cpus):
    cpu = torch.device("cpu")
    assert hybrid().stack.kernel_on(cpu).endswith(", sdpa")
    linear = partial(LinearAttention, feature_map=Elu, kernel="triton")
    with raises_one_line("kernel=triton", "kernel=auto"):
        hybrid(local=partial(MultiHeadAttention, attention=linear)).stack.kernel_on(cpu)


def test_a_hybrids_gradients_reach_every_layer():
    model = hybrid(dropout=0.2).train()
    model(tokens_of(model)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_local_layers_that_are_none_are_refused():
    with pytest.raises(ValueError, match=r"layer 5 the first local one.* num_layers=5 or more"):
        hybrid(local_every=5)
    with pytest.raises(ValueError, match="local_every=1 was asked for; it must be at least 2"):
        hybrid(local_every=1)  # all layers: that is `mixer`


def test_axial_positions_are_of_the_row_the_column_and_the_channel():
    positions = build(positions="axial", max_length=(2, 3, 4)).stack.positions
    rows, columns, channels = positions.tables
    found = positions(torch.zeros(1, 24, 16))[0]
    for i in range(24):
        expected = rows[i // 12] + columns[i // 4 % 3] + channels[i % 4]
        torch.testing.assert_close(found[i], expected)


def test_rms_norm_and_swiglu_are_those_of_their_papers():
    """Zhang and Sennrich (2019), eq. 4; Shazeer (2020), eq. 6: (silu(x W) * x V) W_2."""
    block = build(norm="pre", norm_type="rms", activation="swiglu").stack.blocks[0]
    torch.nn.init.normal_(block.feedforward_norm.weight)
    x = torch.randn(2, 9, 16)
    share = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    normed = x * share * block.feedforward_norm.weight
    torch.testing.assert_close(block.feedforward_norm(x), normed)
    widen, _, _, narrow = block.feedforward
    hidden, gate = widen(normed).chunk(2, dim=-1)
    torch.testing.assert_close(block._fed(x), x + narrow(hidden * gate * gate.sigmoid()))
    assert widen.out_features == 2 * narrow.in_features == 2 * 40  # 8/3 e, in multiples of 8


@pytest.mark.parametrize("cut", [1, 16])
def test_prefill_reproduces_forward_and_continues(attention, cut):
    model = build(attention).double()
    tokens = tokens_of(model)
    first, state = model.prefill(tokens[:, :cut])
    second, _ = model.prefill(tokens[:, cut:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), model(tokens))


def test_one_prefix_can_be_continued_twice(attention):
    model = build(attention).double()
    tokens = tokens_of(model)
    _, state = model.prefill(tokens[:, :20])
    with torch.no_grad():
        once, _ = model.step(tokens[:, 20], state)
        model.step(tokens[:, 21], state)
        again, _ = model.step(tokens[:, 20], state)
    torch.testing.assert_close(again, once)


def test_a_state_can_be_continued_in_another_mode(attention):
    """Of what was made in inference mode, and of what a gradient is yet to be taken."""
    model = build(attention)
    tokens = tokens_of(model)
    with torch.inference_mode():
        _, state = model.prefill(tokens[:, :9])
    with torch.no_grad():
        output, _ = model.step(tokens[:, 9], state)
    torch.testing.assert_close(output, model(tokens)[:, 9])
    _, state = model.prefill(tokens[:, :5])
    outputs, state = model.prefill(tokens[:, 5:9], state)
    with torch.no_grad():
        model.step(tokens[:, 9], state)
    outputs.sum().backward()


def test_a_stack_that_sees_everything_has_no_state(raises_one_line):
    attention = partial(MultiHeadAttention, attention=ATTENTIONS["linear"])
    stack = Transformer(attention, num_layers=1, num_heads=2, model_dim=16, causal=False)
    x = torch.randn(2, 5, stack.input_dim)
    for call in (stack.prefill, partial(stack, piece=Piece(1, (3, 3)))):
        with raises_one_line("causal=False"):
            call(x)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_future_is_invisible(attention, norm):
    model = build(attention, norm=norm).double()
    tokens = tokens_of(model)
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % NUM_VALUES
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :20], before[:, :20], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, 20:], before[:, 20:])


def test_the_head_keeps_float32_under_autocast():
    """Means in bf16 are coarser than the gap between 256 levels."""
    model = build()
    tokens = tokens_of(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(tokens)
    assert outputs.dtype == torch.float32
    assert not torch.equal(outputs, outputs.bfloat16().float())
    torch.testing.assert_close(outputs, model(tokens), rtol=0.1, atol=0.1)


def test_a_state_in_float32_is_continued_under_autocast(attention):
    """As in evaluation of a model in mixed precision: queries, keys and values are bfloat16."""
    model = build(attention)
    tokens = tokens_of(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, state = model.prefill(tokens[:, :20])
        second, state = model.prefill(tokens[:, 20:-1], state)
        last, _ = model.step(tokens[:, -1], state)
    outputs = torch.cat([first, second, last.unsqueeze(1)], dim=1)
    torch.testing.assert_close(outputs, model(tokens), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_size_of_the_state_is_that_of_a_state(attention, dtype):
    model = build(attention).to(dtype)
    _, state = model.prefill(tokens_of(model, batch=1)[:, :9])
    size = sum(x.nbytes for layer in state.layers for x in tensors(layer))
    assert model.stack.state_bytes(9) == size


def test_tokens_beyond_the_last_position_are_refused(raises_one_line):
    model = build()
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    _, state = model.prefill(tokens)
    for read in (
        lambda: model.step(tokens[:, 0], state),
        lambda: model.prefill(tokens[:, :1], state),
        lambda: model(torch.zeros(1, LENGTH + 1, dtype=torch.long)),
    ):
        with raises_one_line(f"{LENGTH + 1} tokens", f"positions for {LENGTH}"):
            read()


def test_the_first_value_is_modelled_from_the_start_token_alone():
    model = build()
    first = model(tokens_of(model))[:, 0]
    torch.testing.assert_close(first, first[:1].expand_as(first))


def test_activation_checkpointing_changes_no_gradient(attention):
    plain = build(attention, dropout=0.0).train()
    saving = build(attention, dropout=0.0, activation_checkpointing=True).train()
    saving.load_state_dict(plain.state_dict())
    tokens = tokens_of(plain)
    for model in (plain, saving):
        model(tokens).square().sum().backward()
    for expected, ours in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)


def test_activation_checkpointing_keeps_little_of_what_follows_a_state():
    """As in training with a carried state, which is prefilled."""
    kept = {}
    for checkpointing in (False, True):
        stack = Transformer(
            DeltaNet, num_layers=3, num_heads=2, model_dim=16,
            positions="none", dropout=0.0, activation_checkpointing=checkpointing,
        ).train()  # fmt: skip
        stack.load_state_dict(kept.setdefault("weights", stack.state_dict()))
        x = torch.linspace(-1, 1, 2 * 40 * 16).reshape(2, 40, 16).requires_grad_()
        _, state = stack.prefill(x.detach())
        saved: list[int] = []
        with saved_tensors_hooks(lambda t, saved=saved: saved.append(t.nbytes) or t, lambda t: t):
            outputs, after = stack.prefill(x, state)
        (gradient,) = torch.autograd.grad(outputs.square().sum() + after.layers[0].past.sum(), x)
        kept[checkpointing] = (sum(saved), gradient)
    torch.testing.assert_close(kept[True][1], kept[False][1])
    assert 5 * kept[True][0] < kept[False][0]


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_every_parameter_is_trained(attention, activation):
    model = build(attention, activation=activation, positions="learned").train()
    model(tokens_of(model)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_post_norm_is_layer_norm_of_the_residual_sum():
    """Vaswani et al. (2017), section 3.1: LayerNorm(x + Sublayer(x)), twice."""
    block = Block(
        partial(MultiHeadAttention, attention=ATTENTIONS["linear"]), model_dim=16, num_heads=2,
        feedforward_dim=32, dropout=0.0, norm="post", norm_type="layer", activation="relu",
    )  # fmt: skip
    x = torch.randn(2, 9, 16)
    q, k, v = (part.unflatten(-1, (2, 8)) for part in block.mixer.project_in(x).chunk(3, -1))
    attended = block.mixer.project_out(block.mixer.attention(q, k, v).flatten(-2))
    inner = block.mixer_norm(x + attended)
    torch.testing.assert_close(block(x), block.feedforward_norm(inner + block.feedforward(inner)))


def test_sinusoids_are_those_of_vaswani():
    table = sinusoids(torch.arange(50), 8)
    assert table.shape == (50, 8)
    expected = torch.tensor(7 / 10000 ** (4 / 8))
    torch.testing.assert_close(table[7, 4], expected.sin())
    torch.testing.assert_close(table[7, 5], expected.cos())


def test_fixed_positions_are_not_saved_and_learned_ones_are():
    assert "stack.positions.table" not in build(positions="added").state_dict()
    assert "stack.positions.table" in build(positions="learned").state_dict()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_heads": 3}, ("model_dim=16", "num_heads=3", "15")),
        ({"num_heads": 0}, ("num_heads=0",)),
        ({"num_layers": 0}, ("num_layers=0", "at least 1")),
        ({"norm": "both"}, ("norm=both", "post", "pre")),
        ({"norm_type": "batch"}, ("norm_type=batch", "layer", "rms")),
        ({"positions": "axial", "max_length": None}, ("positions=axial", "maximum length")),
        ({"activation": "tanh"}, ("activation=tanh", "relu", "gelu")),
        ({"positions": "rotary"}, ("positions=rotary", "concatenated", "added", "learned")),
        ({"model_dim": 15, "num_heads": 3}, ("model_dim=15", "odd", "16")),
    ],
)
def test_impossible_sizes_and_unknown_choices_are_refused(options, words, raises_one_line):
    with raises_one_line(*words):
        build(**options)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("positions", ["concatenated", "added", "axial", "learned"])
def test_a_model_made_without_memory_has_its_positions_once_it_is_loaded(positions, assign):
    exact = build(positions=positions)
    with torch.device("meta"):
        model = build(positions=positions)
    if not assign:
        model.to_empty(device="cpu")
        for buffer in model.buffers():
            buffer.fill_(1_000)
    model.load_state_dict(exact.state_dict(), assign=assign)
    tokens = tokens_of(exact)
    torch.testing.assert_close(model(tokens), exact(tokens), rtol=0, atol=0)


@pytest.mark.parametrize(
    "mixer",
    [
        MultiHeadAttention(16, 2, attention=SoftmaxAttention),
        lambda model_dim, num_heads: SoftmaxAttention(num_heads, model_dim // num_heads),
    ],
)
def test_what_makes_no_mixer_is_refused(mixer, raises_one_line):
    with raises_one_line("Attention was given", "a subclass, or a partial"):
        Transformer(mixer, 4, num_layers=2, num_heads=2, model_dim=16)
