"""The encoder-decoder keeps attention's contract, and softmax's is that of 2017."""

from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

from linear_transformers.attention import LinearAttention, LshAttention, SoftmaxAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import GatedDeltaNet, MultiHeadAttention, MultiHeadCrossAttention
from linear_transformers.models import EncoderDecoder, Transformer
from linear_transformers.models.dropout import Dropout
from linear_transformers.ops.recurrent import LinearState
from linear_transformers.testing import tensors

ATTENTIONS = {"linear": partial(LinearAttention, feature_map=Elu), "softmax": SoftmaxAttention}
MIXERS = {
    **{name: partial(MultiHeadAttention, attention=each) for name, each in ATTENTIONS.items()},
    "gated_delta": GatedDeltaNet,
    "linear, with parts": partial(
        MultiHeadAttention, attention=ATTENTIONS["linear"],
        short_convolution=4, rotary=True, output_norm=True, output_gate="silu",
    ),
}  # fmt: skip
CROSSES = {
    name: partial(MultiHeadCrossAttention, attention=each)
    for name, each in {
        **ATTENTIONS, "linear, grouped": partial(ATTENTIONS["linear"], num_key_heads=1)
    }.items()
}  # fmt: skip


class OneTensor(LinearAttention):
    """A memory that is a tensor, not a tuple: both sums side by side."""

    def summarize(self, k, v, lengths=None):
        kv_sum, k_sum = super().summarize(k, v, lengths)
        return torch.cat([kv_sum, k_sum.unsqueeze(-1)], dim=-1)

    def read(self, q, memory):
        return super().read(q, LinearState(memory[..., :-1], memory[..., -1]))


STACK = {"num_layers": 2, "num_heads": 2, "model_dim": 16, "positions": "added", "dropout": 0.0}
NUM_TOKENS, LENGTH = 11, 9
LENGTHS = torch.tensor([7, 1, 4])


def build(
    encoder: str = "softmax", decoder: str = "linear", cross: str = "linear", **options
) -> EncoderDecoder:
    torch.manual_seed(0)
    options = STACK | options
    shared = options.pop("shared_embeddings", True)
    model = EncoderDecoder(
        Transformer(MIXERS[encoder], causal=False, **options),
        Transformer(MIXERS[decoder], cross=CROSSES[cross], **options),
        NUM_TOKENS,
        shared_embeddings=shared,
    )
    return model.double().eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of a target, and of a source of `LENGTHS`."""
    torch.manual_seed(1)
    return tuple(torch.randint(NUM_TOKENS, (3, n)) for n in (LENGTH, int(LENGTHS.max())))


@pytest.fixture(
    params=[*product(("softmax", "linear, with parts"), MIXERS, CROSSES)],
    ids=lambda names: "-".join(names),
)
def model(request) -> EncoderDecoder:
    return build(*request.param)


def test_stepping_reproduces_forward(model):
    tokens, source = inputs()
    expected = model(tokens, source, LENGTHS)
    state = model.init_state(model.summarize(source, LENGTHS))
    outputs = []
    for i in range(LENGTH):
        output, state = model.step(tokens[:, i], state)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs, dim=1), expected)


def test_prefilled_and_forked_states_go_on_as_forward_does(model):
    tokens, source = inputs()
    rows = torch.tensor([2, 0, 2])
    expected = model(tokens[rows], source[rows], LENGTHS[rows])
    outputs, state = model.prefill(
        tokens[:, :5], model.init_state(model.summarize(source, LENGTHS))
    )
    torch.testing.assert_close(outputs[rows], expected[:, :5])
    forked = model.select(state, rows)
    for i in range(5, LENGTH):
        output, forked = model.step(tokens[rows, i], forked)
        torch.testing.assert_close(output, expected[:, i])
    again, _ = model.step(tokens[:, 5], state)  # which the fork has left alone
    torch.testing.assert_close(again[rows], expected[:, 5])


def test_the_future_is_invisible(model):
    tokens, source = inputs()
    other = tokens.clone()
    other[:, 6] = (other[:, 6] + 1) % NUM_TOKENS
    before, after = model(tokens, source, LENGTHS), model(other, source, LENGTHS)
    torch.testing.assert_close(after[:, :6], before[:, :6], rtol=0, atol=0)
    assert (after[:, 6:] != before[:, 6:]).any()


def test_padded_sources_give_what_single_ones_give(model):
    tokens, source = inputs()
    outputs = model(tokens, source, LENGTHS)
    for i, length in enumerate(LENGTHS):
        alone = model(tokens[i : i + 1], source[i : i + 1, :length])
        torch.testing.assert_close(outputs[i : i + 1], alone)


@pytest.mark.parametrize("decoder", MIXERS)
@pytest.mark.parametrize("cross", CROSSES)
def test_a_source_that_is_summarised_is_not_kept(decoder, cross):
    model = build(decoder=decoder, cross=cross)
    sizes = []
    for length in (8, 800):
        state = model.init_state(model.summarize(torch.zeros(1, length, dtype=torch.long)))
        state = model.prefill(torch.zeros(1, 5, dtype=torch.long), state)[1]
        sizes.append(sum(tensor.nbytes for tensor in tensors(state.layers)))
        assert sizes[-1] == model.decoder.state_bytes(5, length)
    assert (sizes[0] == sizes[1]) == (cross != "softmax")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_softmax_everywhere_is_torchs_transformer(norm):
    """With copied weights and padded sources: outputs, gradients, and outputs after a step."""
    model = build("softmax", "softmax", "softmax", norm=norm, positions="none")
    sizes = {"dropout": 0.0, "batch_first": True, "norm_first": norm == "pre"}
    layer = nn.TransformerEncoderLayer(16, 2, 64, **sizes)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)
    theirs = nn.Transformer(16, 2, 2, 2, 64, **sizes, custom_encoder=encoder).double()
    theirs.eval()
    with torch.no_grad():
        for x in (*model.parameters(), *theirs.parameters()):
            x.normal_(std=0.5)  # biases and norms too
    for ours, its in ((model.encoder, theirs.encoder), (model.decoder, theirs.decoder)):
        copy(ours.norm, its.norm)
        for block, layer in zip(ours.blocks, its.layers, strict=True):
            copy_block(block, layer)
    source, target = (torch.randn(3, n, 16, dtype=torch.float64) for n in (7, LENGTH))
    padding = torch.arange(7) >= LENGTHS.unsqueeze(1)
    weights = torch.randn_like(target)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH).double()
    for _ in range(2):
        given = [x.detach().requires_grad_() for x in (source, target)]
        memories = model.decoder.summarize(model.encoder(given[0], LENGTHS), LENGTHS)
        outputs = model.decoder(given[1], memories=memories)
        expected = theirs(
            *given, tgt_mask=mask, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        torch.testing.assert_close(outputs, expected)
        found = []
        for y, module in ((outputs, model), (expected, theirs)):
            used = [x for x in module.parameters() if x.requires_grad]
            gradients = torch.autograd.grad((y * weights).sum(), [*given, *used], allow_unused=True)
            found.append(gradients[:2])
            with torch.no_grad():
                for x, gradient in zip(used, gradients[2:], strict=True):
                    x -= 0.01 * (0 if gradient is None else gradient)  # of embeddings
        torch.testing.assert_close(*found)


def copy(ours: nn.Module, theirs: nn.Module) -> None:
    ours.load_state_dict(theirs.state_dict())


def copy_block(block: nn.Module, layer: nn.Module) -> None:
    """Copy a layer of torch's encoder or decoder."""

    def weights(attention: nn.MultiheadAttention, start: int, end: int) -> dict[str, torch.Tensor]:
        part = slice(16 * start, 16 * end)
        return {"weight": attention.in_proj_weight[part], "bias": attention.in_proj_bias[part]}

    block.mixer.project_in.load_state_dict(weights(layer.self_attn, 0, 3))
    copy(block.mixer.project_out, layer.self_attn.out_proj)
    widen, _, _, narrow = block.feedforward
    copy(widen, layer.linear1)
    copy(narrow, layer.linear2)
    norms = [block.mixer_norm, block.feedforward_norm]
    if hasattr(block, "cross"):
        block.cross.project_query.load_state_dict(weights(layer.multihead_attn, 0, 1))
        block.cross.project_source.load_state_dict(weights(layer.multihead_attn, 1, 3))
        copy(block.cross.project_out, layer.multihead_attn.out_proj)
        norms.insert(1, block.cross_norm)
    for i, norm in enumerate(norms):
        copy(norm, getattr(layer, f"norm{i + 1}"))


def test_embeddings_are_shared_or_not():
    shared, apart = build(), build(shared_embeddings=False)
    assert shared.head.weight is shared.source_tokens.weight is shared.target_tokens.weight
    matrices = apart.head.weight, apart.source_tokens.weight, apart.target_tokens.weight
    assert len({id(matrix) for matrix in matrices}) == 3


def test_every_dropout_of_both_stacks_has_masks_of_its_own():
    model = build(dropout=0.1)
    places = [module.place for module in model.modules() if isinstance(module, Dropout)]
    assert len(places) == len({*places}) == (1 + 2 * 3) + (1 + 2 * 4)  # of positions, and of blocks


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_what_is_read_of_the_source_is_dropped_too(norm):
    model = build(dropout=0.1, norm=norm).train()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.rate = 0.0
    tokens, source = inputs()
    without = model(tokens, source, LENGTHS)
    for block in model.decoder.blocks:
        block.cross_dropout.rate = 0.5
    assert not torch.allclose(model(tokens, source, LENGTHS), without)


def test_recomputed_blocks_have_the_same_gradients():
    tokens, source = inputs()
    found = []
    for recomputed in (False, True):
        model = build(activation_checkpointing=recomputed).train()
        loss = model(tokens, source, LENGTHS).square().sum()
        found.append(torch.autograd.grad(loss, [*model.parameters()]))
    torch.testing.assert_close(*found)


def test_memories_are_for_stacks_that_read_them(raises_one_line):
    x = torch.zeros(1, 3, 16, dtype=torch.float64)
    model = build()
    memories = model.decoder.summarize(x)
    for call in (lambda: model.decoder(x), lambda: model.decoder.init_state(1)):
        with raises_one_line("no memories", "Leave out cross"):
            call()
    encoder = model.encoder
    for call in (lambda: encoder(x, memories=memories), lambda: encoder.init_state(1, memories)):
        with raises_one_line("without cross"):
            call()


def test_sequences_that_share_a_source_are_only_stepped(raises_one_line):
    model = build()
    source = torch.tensor([[2, 3], [4, 5]])
    state = model.init_state(model.summarize(source))
    rows, both = torch.tensor([0, 0, 1, 1]), torch.arange(2)
    with raises_one_line("2 sequences share a source", "without `sources`"):
        model.prefill(rows[:, None], model.select(state, rows, both))
    with raises_one_line("3 rows cannot share 2 sources"):
        model.select(state, rows[:3], both)
    with raises_one_line("sources", "rising order", "[1, 0]"):
        model.select(state, rows.flip(0), both.flip(0))


def test_what_cannot_be_is_refused(raises_one_line):
    with raises_one_line("LshAttention", "linear or softmax"):
        MultiHeadCrossAttention(16, 2, attention=partial(LshAttention, num_buckets=4, window=8))
    with raises_one_line("model_dim=16", "num_heads=3"):
        CROSSES["linear"](16, 3)
    causal = Transformer(MIXERS["linear"], **STACK)
    decoder = Transformer(MIXERS["linear"], cross=CROSSES["linear"], **STACK)
    encoder = Transformer(MIXERS["linear"], causal=False, **STACK)
    wide = Transformer(MIXERS["linear"], causal=False, **STACK | {"model_dim": 32})
    half = Transformer(MIXERS["linear"], causal=False, **STACK | {"positions": "concatenated"})
    for stacks, words in (
        ((causal, decoder), ("causal=True", "whole source")),
        ((encoder, causal), ("no `cross`",)),
        ((wide, decoder), ("model_dim=32", "model_dim=16")),
        ((half, decoder), ("[8, 16]", "positions=added")),
    ):
        with raises_one_line(*words):
            EncoderDecoder(*stacks, NUM_TOKENS)
    with raises_one_line("cross", "causal=False"):
        Transformer(MIXERS["linear"], cross=CROSSES["linear"], causal=False, **STACK)


@pytest.mark.parametrize("cross", CROSSES)
def test_weights_are_those_of_the_definition(cross):
    """Of each layer, from its queries and keys in float64; outputs are their means of values."""
    model = build(cross=cross)
    tokens, source = inputs()
    given: list[tuple] = []
    for block in model.decoder.decoder_blocks:
        block.cross.register_forward_hook(lambda cross, x, y: given.append((cross, x[0], y)))
    weights = model.weights(tokens, source)
    encoded = model.encoder(model.source_tokens(source) * 4)
    assert weights.shape == (2, 3, 2, LENGTH, source.shape[1])
    for found, (layer, x, y) in zip(weights, given, strict=True):
        q = layer.project_query(x).unflatten(-1, (2, 8))
        k, v = layer.project_source(encoded).unflatten(-1, (-1, 8)).chunk(2, dim=2)
        k, v = (z.expand(-1, -1, 2, -1) for z in (k, v))  # where both heads have the same
        if cross == "softmax":
            scores = torch.einsum("bthd,bshd->bhts", q, k) / 8**0.5
            expected = scores.softmax(-1)
        else:
            scores = torch.einsum(
                "bthd,bshd->bhts", *(torch.nn.functional.elu(z) + 1 for z in (q, k))
            )
            expected = scores / (scores.sum(-1, keepdim=True) + 1e-6)
        torch.testing.assert_close(found, expected)
        means = torch.einsum("bhts,bshm->bthm", found, v).flatten(2)
        torch.testing.assert_close(layer.project_out(means), y)


@pytest.mark.parametrize("cross", CROSSES)
@pytest.mark.parametrize("decoder", MIXERS)
def test_rows_that_share_a_source_go_on_as_those_with_one_each(decoder, cross):
    """Through forks, orders and sources that are left out; and back to a memory of each row."""
    model = build(decoder=decoder, cross=cross)
    tokens, source = inputs()
    state = model.init_state(model.summarize(source, LENGTHS))
    _, state = model.prefill(tokens[:, :3], state)
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    shared = model.select(state, rows, torch.arange(3))
    memories = [layer.memory for layer in shared.layers]
    assert all(a is b.memory for a, b in zip(memories, state.layers, strict=True))  # no copy
    apart = model.select(state, rows)
    for order, kept in (
        (torch.tensor([1, 1, 2, 3, 5, 4]), torch.arange(3)),
        (torch.tensor([1, 0, 4, 4]), torch.tensor([0, 2])),
        (torch.tensor([3, 2, 0]), None),
    ):
        token = torch.arange(len(rows)) % NUM_TOKENS
        found, shared = model.step(token, shared)
        expected, apart = model.step(token, apart)
        torch.testing.assert_close(found, expected)
        rows = rows[order]
        shared, apart = model.select(shared, order, kept), model.select(apart, order)
    token = torch.tensor([4, 5, 6])
    torch.testing.assert_close(model.step(token, shared)[0], model.step(token, apart)[0])


def test_a_memory_may_be_one_tensor(monkeypatch):
    """There are as many heads as sources that are kept, which must not be taken for all of them."""
    expected = build()
    one_tensor = partial(OneTensor, feature_map=Elu)
    cross = partial(MultiHeadCrossAttention, attention=one_tensor)
    monkeypatch.setitem(CROSSES, "one tensor", cross)
    model = build(cross="one tensor")
    model.load_state_dict(expected.state_dict())
    tokens, source = inputs()
    rows, kept = torch.tensor([0, 0, 2, 2]), torch.tensor([0, 2])
    outputs = []
    for each in (expected, model):
        state = each.init_state(each.summarize(source, LENGTHS))
        first, state = each.prefill(tokens[:, :3], state)
        second, _ = each.step(tokens[rows, 3], each.select(state, rows, kept))
        outputs.append((first, second))
    torch.testing.assert_close(*outputs)
