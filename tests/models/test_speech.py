"""Speech encoders: padding is invisible, and a stream gives what the whole recording gives."""

import inspect
from functools import partial

import pytest
import torch

from linear_transformers.attention import (
    LinearAttention,
    LshAttention,
    ReformerAttention,
    SoftmaxAttention,
    WindowAttention,
)
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import (
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    MultiHeadAttention,
    MultiScaleRetention,
)
from linear_transformers.models import BiLstm, SpeechEncoder, Transformer
from linear_transformers.testing import tensors

LINEAR = partial(LinearAttention, feature_map=Elu)
ATTENTIONS = {
    "linear": LINEAR,
    "softmax": SoftmaxAttention,
    "window": partial(WindowAttention, window=3),
    "lsh4": partial(LshAttention, num_rounds=4, num_buckets=4, window=4),
    "reformer4": partial(ReformerAttention, num_rounds=4, num_buckets=4, chunk=4),
}
ENCODERS = {
    **{name: partial(MultiHeadAttention, attention=each) for name, each in ATTENTIONS.items()},
    "linear_conv": partial(
        MultiHeadAttention,
        attention=LINEAR,
        short_convolution=4,
        output_norm=True,
        output_gate="silu",
    ),
}
CAUSAL = {
    **{name: ENCODERS[name] for name in ("linear", "softmax", "window", "lsh4", "linear_conv")},
    "delta": DeltaNet,
    "gated_delta": GatedDeltaNet,
    "kimi_delta": KimiDeltaAttention,
    "gated": GatedLinearAttention,
    "retention": MultiScaleRetention,
}
MELS, LABELS = 5, 3
SUBSAMPLINGS = [(1, 3), (2, 7), (4, 3), (4, 11)]  # and the convolutions' width


def build(name: str, *, causal: bool = False, positions: str = "added", **options) -> SpeechEncoder:
    torch.manual_seed(0)
    if name == "bilstm":
        stack: Transformer | BiLstm = BiLstm(num_layers=2, hidden_dim=8)
    else:
        mixer = (CAUSAL if causal else ENCODERS)[name]
        stack = Transformer(
            mixer, num_layers=2, num_heads=2, model_dim=16, positions=positions, causal=causal
        )
    model = SpeechEncoder(stack, num_mels=MELS, num_labels=LABELS, **options).double().eval()
    model.adopt(torch.full((MELS,), 0.5), torch.full((MELS,), 2.0), 100)
    return model


def features_of(frames: int, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(frames)
    return torch.randn(batch, frames, MELS, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("normalization", ["corpus", "utterance", "none"])
@pytest.mark.parametrize(("subsampling", "width"), SUBSAMPLINGS)
@pytest.mark.parametrize("name", [*ENCODERS, "bilstm"])
def test_a_padded_batch_gives_what_single_utterances_give(name, subsampling, width, normalization):
    model = build(name, subsampling=subsampling, width=width, normalization=normalization)
    lengths = torch.tensor([1, 9, 33, 34, 35, 36])
    features = features_of(36, len(lengths))
    for row, length in zip(features, lengths, strict=True):
        row[length:] = torch.nan if length % 2 else 1e6  # never looked at
    scores, sizes = model(features, lengths)
    assert sizes.tolist() == [model.num_outputs(length) for length in lengths.tolist()]
    for i, (length, size) in enumerate(zip(lengths.tolist(), sizes.tolist(), strict=True)):
        alone, alone_sizes = model(features[i : i + 1, :length], lengths[i : i + 1])
        assert alone_sizes.item() == size == alone.shape[1]
        torch.testing.assert_close(scores[i, :size], alone[0])


@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize(("subsampling", "width"), SUBSAMPLINGS)
@pytest.mark.parametrize("name", CAUSAL)
def test_a_stream_gives_what_the_whole_gives(name, subsampling, width, lookahead):
    options = {"subsampling": subsampling, "width": width, "lookahead": lookahead}
    model = build(name, causal=True, **options)
    for frames, pieces in ((1, (1,)), (2, (1, 2)), (7, (1, 3)), (41, (5, 16, 41))):
        features = features_of(frames, batch=2)
        expected, _ = model(features, torch.full((2,), frames))
        for piece in pieces:
            state, parts = model.init_state(2), []
            for start in range(0, frames, piece):
                part, state = model.stream(features[:, start : start + piece], state)
                parts.append(part)
            parts.append(model.stream(features[:, :0], state, last=True)[0])
            torch.testing.assert_close(torch.cat(parts, dim=1), expected)


@pytest.mark.parametrize(("subsampling", "width"), SUBSAMPLINGS)
def test_a_causal_encoder_sees_no_further_than_it_says(subsampling, width):
    model = build("linear", causal=True, subsampling=subsampling, width=width, lookahead=2)
    features = features_of(40)
    changed = features.clone()
    changed[:, 24:] += 1
    everything = torch.tensor([40])
    before, after = (model(x, everything)[0] for x in (features, changed))
    # Output i stands at frame i * subsampling, and waits for two more outputs' frames.
    unseen = -(-24 // subsampling) - 2
    torch.testing.assert_close(after[:, :unseen], before[:, :unseen], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, unseen], before[:, unseen])


def test_a_stream_leaves_the_state_it_was_given_untouched():
    model = build("linear", causal=True, lookahead=1)
    _, state = model.stream(features_of(23), model.init_state())
    once, _ = model.stream(features_of(9), state)
    model.stream(features_of(11), state)
    again, _ = model.stream(features_of(9), state)
    torch.testing.assert_close(again, once, rtol=0, atol=0)


@torch.inference_mode()
def test_ten_minutes_take_no_more_memory_than_ten_seconds():
    """Nothing that is kept grows: frames, sums and positions have the size they had."""
    model = build("linear", causal=True, positions="none", lookahead=2)
    state, sizes = model.init_state(), []
    for _ in range(60):
        _, state = model.stream(features_of(1000), state)
        kept = [*state.frames, *tensors(state.stack.layers)]
        sizes.append(sum(x.untyped_storage().nbytes() for x in kept))
    assert state.stack.position == 15_000 - 2
    assert len(set(sizes[1:])) == 1  # before the first, less is waiting


def test_masks_hide_parts_in_training_only():
    model = build("linear", time_masks=2, time_mask_frames=8, mel_masks=1, mel_mask_bands=2)
    features, lengths = features_of(40), torch.tensor([40])
    torch.testing.assert_close(model(features, lengths)[0], model(features, lengths)[0])
    model.augment.train()
    model.training = True
    assert not torch.allclose(model(features, lengths)[0], model(features, lengths)[0])


@pytest.mark.parametrize("name", [*ENCODERS, "bilstm"])
def test_every_parameter_is_trained(name):
    model = build(name).train()
    scores, _ = model(features_of(40, 2), torch.tensor([40, 31]))
    scores[:, :8].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "causal", "options", "words"),
    [
        ("linear", False, {"lookahead": 2}, ("lookahead=2", "model.causal=true")),
        ("linear", True, {"normalization": "utterance"}, ("utterance", "corpus")),
        ("linear", False, {"normalization": "none at all"}, ("none at all", "corpus")),
        ("linear", False, {"subsampling": 3}, ("subsampling=3", "[1, 2, 4]")),
        ("linear", False, {"width": 4}, ("width=4", "odd")),
        ("linear", True, {"width": 1, "subsampling": 2}, ("width=1", "subsampling=2", "width=3")),
        ("linear", False, {"mel_mask_bands": 6}, ("mel_mask_bands=6", "num_mels=5")),
        ("linear", False, {"positions": "learned"}, ("positions=learned", "added")),
    ],
)
def test_what_cannot_be_is_refused(name, causal, options, words, raises_one_line):
    with raises_one_line(*words):
        build(name, causal=causal, **options)


def test_attention_that_cannot_see_everything_says_so(raises_one_line):
    with raises_one_line("DeltaNet", "model.causal=true"):
        Transformer(DeltaNet, num_layers=1, num_heads=2, model_dim=16, causal=False)


def test_a_causal_encoder_that_sees_later_frames_is_refused(raises_one_line):
    """Padding is later, too: an utterance would be told by what it is batched with."""
    stack = Transformer(ENCODERS["reformer4"], num_layers=1, num_heads=2, model_dim=16)
    with raises_one_line("Reformer", "later frames", "model=lsh4", "model.causal=false"):
        SpeechEncoder(stack, MELS, LABELS)


@pytest.mark.parametrize("name", ["linear", "bilstm"])
def test_an_encoder_that_sees_everything_cannot_stream(name, raises_one_line):
    with raises_one_line("model.causal=true"):
        build(name).init_state()


@pytest.mark.parametrize("encoder", [BiLstm(num_layers=1, hidden_dim=8), "linear"])
@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([37, 0], "A length of 0 was given"),
        ([37, 38], "A length of 38 was given; the sequences have 37 positions"),
        ([37], "Lengths [1] of torch.int64 were given for 2 sequences"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(encoder, lengths, words, raises_one_line):
    """One too few would lose an utterance in silence."""
    stack = encoder
    if isinstance(encoder, str):
        stack = Transformer(
            ENCODERS[encoder], 8, num_layers=1, num_heads=2, model_dim=8, causal=False
        )
    forward = inspect.unwrap(SpeechEncoder.forward)  # as without the tests' check of shapes
    with raises_one_line(words):
        forward(SpeechEncoder(stack, 8, 5).eval(), torch.randn(2, 37, 8), torch.tensor(lengths))
    if isinstance(stack, Transformer):
        with raises_one_line(words):
            inspect.unwrap(Transformer.forward)(stack, torch.randn(2, 37, 8), torch.tensor(lengths))
