"""The compiled stepper is the model's own step."""

from functools import partial
from itertools import product

import pytest
import torch

from benchmarks.machine import thread_count
from linear_transformers import kernels
from linear_transformers.attention import (
    LinearAttention,
    SoftmaxAttention,
    SparseAttention,
    WindowAttention,
)
from linear_transformers.distributions import LogisticMixture
from linear_transformers.feature_maps import Elu, Relu
from linear_transformers.kernels import compiling
from linear_transformers.kernels.compiling import compiled
from linear_transformers.mixers import (
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    MultiHeadAttention,
)
from linear_transformers.models import AutoregressiveTransformer, Block, Transformer
from linear_transformers.sampling import (
    CompiledStepper,
    RecurrentStepper,
    complete,
    prefill,
    stepper_of,
    uniform_noise,
)
from tests.conftest import attending

LENGTH, NUM_VALUES, BATCH = 40, 17, 3
PRECISIONS = ("float32", "bfloat16", "int8")
# Heads of whole vectors and of parts of them, panels that are full and not.
SHAPES = {
    "paper": {"num_layers": 3, "num_heads": 4, "model_dim": 128},
    "narrow": {"num_layers": 2, "num_heads": 6, "model_dim": 30, "feedforward_dim": 35},
    "pre-norm": {"num_layers": 2, "num_heads": 2, "model_dim": 40, "norm": "pre"},
    "gelu": {"num_layers": 2, "num_heads": 1, "model_dim": 70, "activation": "gelu"},
    "added": {"num_layers": 1, "num_heads": 3, "model_dim": 51, "positions": "added"},
    "learned": {"num_layers": 1, "num_heads": 4, "model_dim": 64, "positions": "learned"},
    "convolution": {
        "num_layers": 2, "num_heads": 3, "model_dim": 51, "positions": "axial",
        "parts": {"short_convolution": 4},
    },
    "gated": {
        "num_layers": 2, "num_heads": 2, "model_dim": 40, "norm": "pre", "norm_type": "rms",
        "activation": "swiglu", "parts": {"output_gate": "sigmoid", "output_norm": True},
    },
    "all": {
        "num_layers": 2, "num_heads": 4, "model_dim": 60, "norm": "pre", "activation": "swiglu",
        "feedforward_dim": 37,
        "parts": {"short_convolution": 3, "output_gate": "silu", "output_norm": True},
    },
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    kernels.step_unavailable() is not None,
    reason=f"no compiled stepper: {kernels.step_unavailable()}",
)


linear = partial(attending, LinearAttention, feature_map=Elu)
MIXERS = {
    "linear": linear(),
    "softmax": attending(SoftmaxAttention),
    "window": attending(WindowAttention, window=7),
    "delta": DeltaNet,
    "gated_delta": partial(GatedDeltaNet, expand_k=1.0, expand_v=2.0),
}
SCALED = {
    "linear, scaled": linear(scale=0.5),
    "softmax, scaled": attending(SoftmaxAttention, scale=0.5),
}
HYBRIDS = [
    *[("linear", "window"), ("window", "gated_delta")],
    *[("gated_delta", "softmax"), ("delta", "linear")],
]


def made(shape: str = "paper", mixer=MIXERS["linear"], *, local=None, **parts):
    torch.manual_seed(0)
    stack = {"max_length": LENGTH, **SHAPES[shape]}
    if local is not None:
        stack |= {"local": local, "local_every": 2, "num_layers": 3}
    mixer = partial(mixer, **(stack.pop("parts", {}) | parts))
    model = AutoregressiveTransformer(
        Transformer(mixer, **stack), num_values=NUM_VALUES, num_parameters=30
    )
    for name, parameter in model.named_parameters():
        # At first they are ones and zeros: no test at all. But decays would be near nothing.
        if "norm" in name or ("bias" in name and "decay" not in name):
            torch.nn.init.normal_(parameter, mean=0.5, std=0.5)
    return model.eval()


def stepped(stepper, tokens, state=None):
    """The parameters after each token, [b, t, p]."""
    state = stepper.model.init_state(len(tokens)) if state is None else state
    outputs = []
    with torch.inference_mode():
        for i in range(tokens.shape[1]):
            output, state = stepper.step(tokens[:, i], state)
            outputs.append(output)
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("mixer", MIXERS | SCALED)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_forward_in_float64(shape, mixer):
    model = made(shape, (MIXERS | SCALED)[mixer])
    tokens = torch.randint(NUM_VALUES, (BATCH, LENGTH))
    outputs = stepped(CompiledStepper(model), tokens)
    expected = model.double()(tokens)
    torch.testing.assert_close(outputs.double(), expected, rtol=1e-4, atol=1e-4)


# Each level of processors has its own instructions for products: see `compiling.FLAGS`.
LEVELS = {"x86-64": "DEFAULT", "x86-64-v3": "AVX2", "x86-64-v4": "AVX512"}  # and torch's names
CAPABILITY = torch.backends.cpu.get_cpu_capability()


@pytest.fixture(params=["native", *LEVELS])
def processor(request, monkeypatch):
    """Compile for this processor, or for one that has only a part of its instructions."""
    level, names = request.param, list(LEVELS.values())
    if level != "native":
        if CAPABILITY not in names or names.index(CAPABILITY) <= names.index(LEVELS[level]):
            pytest.skip(f"this processor, of {CAPABILITY}, has no more than {level}")
        flags = [f"-march={level}" if "-march" in x else x for x in compiling.FLAGS]
        monkeypatch.setattr(compiling, "FLAGS", flags)
    compiled.cache_clear()
    yield
    compiled.cache_clear()


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize(
    ("shape", "mixer"),
    [*product(["paper", "narrow", "gated", "all"], ["linear"]), ("all", "gated_delta")],
)
def test_products_are_of_rounded_weights_and_inputs(shape, mixer, precision, processor):
    """In float64, with both rounded. An input that lies nearly in the middle of two levels may go
    to the other one in float32: so it is most of many sequences that agree, and not all."""
    model = made(shape, MIXERS[mixer])
    tokens = torch.randint(NUM_VALUES, (40, 3))
    outputs = stepped(CompiledStepper(model, precision), tokens)  # rounds the model's weights, too
    model = model.double()
    of_rounded_weights = stepped(RecurrentStepper(model), tokens)
    for block in model.stack.blocks:
        for module in block.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(
                    lambda _, inputs: rounded_inputs(inputs[0], precision)
                )
    expected = stepped(RecurrentStepper(model), tokens)

    def share_that_is_near(other):
        near = torch.isclose(outputs.double(), other, rtol=1e-4, atol=1e-4)
        return near.flatten(1).all(1).double().mean()

    assert share_that_is_near(expected) > 0.5
    assert share_that_is_near(of_rounded_weights) == 0
    torch.testing.assert_close(outputs.double(), expected, rtol=0.1, atol=0.1)


def rounded_inputs(x, precision):
    """Of each row 256 levels between the least and the greatest, or 8 bits of each number."""
    if precision == "bfloat16":
        return x.float().bfloat16().double()
    least, greatest = x.aminmax(dim=-1, keepdim=True)
    step = (greatest - least) / 255
    return ((x - least) / step).round() * step + least


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("shape", ["paper", "narrow", "all"])
def test_a_sequence_is_the_same_to_the_last_bit_beside_any_others(shape, mixer, precision):
    model = made(shape, MIXERS[mixer])
    tokens = torch.randint(NUM_VALUES, (13, 8))
    stepper = CompiledStepper(model, precision)
    together = stepped(stepper, tokens)
    for threads, batch in product((1, 2, 3), (1, 2, 5, 7, 13)):
        with thread_count(threads):
            parts = [stepped(stepper, part) for part in tokens.split(batch)]
        assert torch.equal(torch.cat(parts), together)


def test_sampling_draws_what_the_model_draws_at_any_batch_size():
    model, distribution = made(), LogisticMixture(NUM_VALUES)
    values, known = torch.randint(NUM_VALUES, (9, LENGTH)), torch.arange(LENGTH) < 11
    noise = uniform_noise(distribution, seed=0, indices=range(9), length=LENGTH)
    drawn = {}
    for name, stepper, batch in (
        ("recurrent", RecurrentStepper(model), 9), ("compiled", CompiledStepper(model), 9),
        ("one by one", CompiledStepper(model), 1),
    ):  # fmt: skip
        parts = []
        for i in range(0, 9, batch):
            start = prefill(stepper, values[i : i + batch], known)
            rows = torch.arange(len(values[i : i + batch]))
            part = noise[i : i + batch]
            parts.append(complete(stepper, distribution.sample, start, rows, part))
            # In place: but on a copy, so that what was prefilled can be completed again.
            again = complete(stepper, distribution.sample, start, rows, part)
            assert torch.equal(again, parts[-1])
        drawn[name] = torch.cat(parts)
    assert torch.equal(drawn["compiled"], drawn["recurrent"])
    assert torch.equal(drawn["one by one"], drawn["compiled"])


@pytest.mark.parametrize("mixer", MIXERS | SCALED)
@pytest.mark.parametrize("shape", ["paper", "all"])
def test_it_goes_on_from_what_was_read(shape, mixer):
    model = made(shape, (MIXERS | SCALED)[mixer])
    tokens = torch.randint(NUM_VALUES, (BATCH, LENGTH))
    stepper = CompiledStepper(model)
    with torch.inference_mode():
        first, state = stepper.prefill(tokens[:, :7])
        second, state = stepper.prefill(tokens[:, 7:15], state)
        rest = stepped(stepper, tokens[:, 15:], stepper.select(state, torch.arange(BATCH)))
    outputs = torch.cat([first, second, rest], dim=1)
    torch.testing.assert_close(outputs, model(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mixer", MIXERS)
def test_it_goes_on_from_what_was_read_under_autocast(mixer):
    """Which leaves the last inputs of convolutions in bfloat16, where the step has float32."""
    model = made("all", MIXERS[mixer])
    tokens = torch.randint(NUM_VALUES, (BATCH, LENGTH))
    outputs = []
    for stepper in (CompiledStepper(model), RecurrentStepper(model)):
        with torch.inference_mode():
            with torch.autocast("cpu", torch.bfloat16):
                _, state = stepper.prefill(tokens[:, :15])
            outputs.append(stepped(stepper, tokens[:, 15:], state))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mixer", "local"), HYBRIDS)
def test_every_second_layer_may_be_of_another_kind(mixer, local):
    """With widths, convolutions and gates of its own."""
    other = partial(MIXERS[local], short_convolution=2, output_gate="sigmoid")
    model = made("all", MIXERS[mixer], local=other)
    tokens = torch.randint(NUM_VALUES, (BATCH, LENGTH))
    stepper = CompiledStepper(model)
    with torch.inference_mode():
        first, state = stepper.prefill(tokens[:, :15])
        rest = stepped(stepper, tokens[:, 15:], stepper.select(state, torch.arange(BATCH)))
    expected = made("all", MIXERS[mixer], local=other).double()(tokens)
    outputs = torch.cat([first, rest], dim=1)
    torch.testing.assert_close(outputs.double(), expected, rtol=1e-4, atol=1e-4)
    alone = [stepped(stepper, row) for row in tokens.split(1)]
    assert torch.equal(torch.cat(alone), stepped(stepper, tokens))


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_state_of_other_sequences_is_refused(mixer, raises_one_line):
    """The step writes where it believes them to be."""
    stepper = CompiledStepper(made("all", MIXERS[mixer]))
    for sequences, tokens in ((1, 2), (2, 1)):
        state = stepper.model.init_state(sequences)
        with raises_one_line(f"state is that of {sequences} sequences", f"{tokens} tokens"):
            stepper.step(torch.zeros(tokens, dtype=torch.long), state)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_state_of_another_model_is_refused(mixer, raises_one_line):
    stepper = CompiledStepper(made("all", MIXERS[mixer]))
    others = [made(shape, MIXERS[mixer]) for shape in ("paper", "narrow", "learned")]
    for other in (*others, made("all", MIXERS[mixer], short_convolution=2)):
        with raises_one_line("state is that of another model", "the same model"):
            stepper.step(torch.zeros(2, dtype=torch.long), other.init_state(2))


def test_it_is_in_float32_whatever_is_made_by_default():
    model = made("all")
    tokens = torch.randint(NUM_VALUES, (BATCH, LENGTH))
    torch.set_default_dtype(torch.float64)
    try:
        outputs = stepped(CompiledStepper(model), tokens)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(outputs, stepped(CompiledStepper(model), tokens))


def test_int8_keeps_255_levels_between_the_extremes_of_each_output():
    weight = torch.randn(5, 64)
    weight[3] = 0
    levels = kernels.rounded(weight, "int8")
    assert torch.equal(levels[3], weight[3])
    steps = weight.abs().amax(1, keepdim=True) / 127
    assert ((levels - weight).abs() <= 0.5001 * steps).all()
    whole = levels / steps.masked_fill(steps == 0, 1)
    torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-3)
    torch.testing.assert_close(kernels.rounded(levels, "int8"), levels)  # twice is once


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: made(mixer=attending(SparseAttention)), "softmax attention"),
        (lambda: made(local=attending(SparseAttention)), "softmax attention"),
        (lambda: made(mixer=attending(LinearAttention, feature_map=Relu)), "feature_map=elu"),
        (lambda: made(mixer=GatedLinearAttention), "one decay a head"),
        (lambda: made(mixer=KimiDeltaAttention), "one decay a head"),
        (lambda: made(mixer=linear(num_key_heads=2)), "grouped queries"),
        (lambda: made(mixer=DeltaNet, num_key_heads=2), "grouped queries"),
        (lambda: made(mixer=DeltaNet, rotary=True), "rotary"),
        (lambda: made(rotary=True), "rotary"),
        (lambda: made(qk_norm="rms"), "norm of queries and keys"),
        (lambda: made(output_gate="silu", low_rank_gate=True), "low rank"),
        (lambda: made().double(), "float64"),
        (lambda: made().bfloat16(), "bfloat16"),
        (lambda: made().to("meta"), "meta"),
    ],
)
def test_where_there_is_none_it_is_said(model, reason, raises_one_line):
    with raises_one_line("stepper=compiled", reason):
        CompiledStepper(model())


def test_without_a_compiler_it_is_said(monkeypatch, tmp_path, raises_one_line):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    compiled.cache_clear()
    try:
        with raises_one_line("stepper=compiled cannot run"):
            CompiledStepper(made())
    finally:
        compiled.cache_clear()


class OtherHeads(MultiHeadAttention):
    def _output(self, outputs, gate):
        return 2 * super()._output(outputs, gate)


class OtherBlock(Block):
    def _normed(self, x):
        return 2 * super()._normed(x)


class OtherLinear(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("kind", [OtherHeads, OtherBlock, OtherLinear])
def test_a_layer_of_ones_own_is_not_taken_for_what_it_is_made_from(kind, raises_one_line):
    """As LoRA's linear layers are, which add to what theirs computes."""
    model = made()
    block = model.stack.blocks[1]
    changed = {
        OtherHeads: block.mixer, OtherBlock: block, OtherLinear: block.feedforward[0]
    }[kind]  # fmt: skip
    changed.__class__ = kind
    with raises_one_line("compiled", kind.__name__):
        CompiledStepper(model)
    stepper = stepper_of(model)
    assert isinstance(stepper, RecurrentStepper)
    tokens = torch.randint(NUM_VALUES, (BATCH, LENGTH))
    torch.testing.assert_close(stepped(stepper, tokens), model(tokens), rtol=1e-4, atol=1e-4)
