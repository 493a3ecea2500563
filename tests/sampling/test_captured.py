"""The captured stepper draws what the model draws: on a GPU from a captured graph, else in Triton's
interpreter."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from linear_transformers.attention import (
    LinearAttention,
    LshAttention,
    SoftmaxAttention,
    WindowAttention,
)
from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.feature_maps import Elu, Relu
from linear_transformers.mixers import (
    LSTM,
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    MultiScaleRetention,
)
from linear_transformers.models import AutoregressiveTransformer, StackState, Transformer
from linear_transformers.sampling import (
    CapturedStepper,
    FusedStepper,
    RecurrentStepper,
    complete,
    largest_step_difference,
    prefill,
    uniform_noise,
)
from tests.conftest import PROJECT, attending, autoregressive

pytest.importorskip("triton", reason="Triton is not for this system")

LENGTH, NUM_VALUES, BATCH = 6, 17, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def linear(*, feature_map=Elu, scale=1.0, attention=None, **options):
    torch.manual_seed(0)
    attention = attention or partial(LinearAttention, feature_map=feature_map, scale=scale)
    sizes = {"num_parameters": 30, "max_length": LENGTH, "num_layers": 2, "num_heads": 2}
    model = autoregressive(attention, num_values=NUM_VALUES, model_dim=24, **{**sizes, **options})
    return model.eval().to(DEVICE)


WINDOW = attending(WindowAttention, window=3)
# Mixers whose state has one size, beside linear attention; and what every second layer has.
CONSTANT = {
    "delta": (DeltaNet, None),
    "gated_delta": (GatedDeltaNet, None),
    "kimi_delta": (KimiDeltaAttention, None),
    "gated": (GatedLinearAttention, None),
    "retention": (MultiScaleRetention, None),
    "lstm": (LSTM, None),
    "lsh": (attending(LshAttention, num_rounds=2, num_buckets=4, window=3), None),
    "window": (WINDOW, None),
    "hybrid": (DeltaNet, WINDOW),
}


def constant(name: str):
    torch.manual_seed(0)
    mixer, local = CONSTANT[name]
    layers = {} if local is None else {"local": local, "local_every": 2}
    stack = Transformer(mixer, num_layers=2, num_heads=2, model_dim=24, max_length=LENGTH, **layers)
    sizes = {"num_values": NUM_VALUES, "num_parameters": 30}
    return AutoregressiveTransformer(stack, **sizes).eval()


def known_first(count: int):
    return torch.arange(LENGTH) < count


def completions(stepper, distribution, values, known, **options):
    start = prefill(stepper, values, known)
    rows = torch.tensor([0, 1, 2, 3, 1])  # one of them twice
    noise = uniform_noise(distribution, seed=0, indices=range(len(rows)), length=LENGTH)
    return complete(stepper, distribution.sample, start, rows, noise, **options)


@pytest.mark.parametrize("kernel", ["auto", "chunkwise", "parallel"])
def test_it_goes_on_from_what_any_kernel_read(kernel):
    model = linear(attention=partial(LinearAttention, feature_map=Elu, kernel=kernel))
    values = torch.randint(NUM_VALUES, (BATCH, LENGTH), device=DEVICE)
    assert largest_step_difference(CapturedStepper(model), values) < 1e-5


def test_a_fused_step_is_one_graph_and_the_same_step():
    """In a process of its own: compilation does not see through the tests' checks of shapes.
    Not with inductor on a CPU, which compiles for long."""
    program = """
import torch
from linear_transformers.distributions import LogisticMixture
from linear_transformers.sampling import (
    FusedStepper, largest_step_difference, launches_per_step
)
from tests.sampling.test_captured import BATCH, DEVICE, LENGTH, NUM_VALUES, constant, linear

if DEVICE == "cpu":
    FusedStepper.backend = "aot_eager"
values = torch.randint(NUM_VALUES, (BATCH, LENGTH), device=DEVICE)
for model in (linear(), constant("hybrid").to(DEVICE)):
    difference = largest_step_difference(FusedStepper(model), values)
    assert difference < 1e-5, difference
launches = launches_per_step(FusedStepper(linear()), LogisticMixture(NUM_VALUES), length=LENGTH)
assert (launches > 0) == (DEVICE == "cuda"), launches
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("given", [(), (0, 1, 2), (1, 4), (0, 5), tuple(range(LENGTH))])
def test_it_draws_what_the_model_draws(given):
    model, distribution = linear(), LogisticMixture(NUM_VALUES)
    values = torch.randint(NUM_VALUES, (BATCH, LENGTH))
    known = torch.zeros(LENGTH, dtype=torch.bool)
    known[list(given)] = True
    places: list[int] = []
    drawn = completions(
        CapturedStepper(model), distribution, values, known, on_value=lambda: places.append(0)
    )
    expected = completions(RecurrentStepper(model), distribution, values, known)
    assert torch.equal(drawn, expected)
    hidden = (~known).nonzero().flatten().tolist()
    assert len(places) == (hidden[-1] - hidden[0] + 1 if hidden else 0)


def test_a_loop_serves_every_batch_of_its_size():
    model, distribution = linear(num_parameters=NUM_VALUES), Categorical(NUM_VALUES)
    captured, recurrent = CapturedStepper(model), RecurrentStepper(model)
    known, loops = known_first(2), set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        values = torch.randint(NUM_VALUES, (BATCH, LENGTH))
        start, plain = (prefill(x, values, known) for x in (captured, recurrent))
        noise = uniform_noise(distribution, seed=seed, indices=range(BATCH), length=LENGTH)
        rows = torch.arange(BATCH)
        drawn = complete(captured, distribution.sample, start, rows, noise)
        loops.add(captured._loop)
        # What was prefilled can be completed again: its state was copied.
        assert torch.equal(complete(captured, distribution.sample, start, rows, noise), drawn)
        assert torch.equal(complete(recurrent, distribution.sample, plain, rows, noise), drawn)
    assert len(loops) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "pre", "positions": "added"},
        {"positions": "learned", "scale": 0.5},
        {"positions": "none", "activation": "gelu"},
        {"feature_map": Relu},
        {"positions": "axial", "max_length": (2, 3), "norm_type": "rms", "activation": "swiglu"},
        {"parts": {"short_convolution": 3, "output_gate": "silu", "output_norm": True}},
        {"parts": {"rotary": True, "qk_norm": "rms"}},
    ],
)
def test_it_steps_as_the_model_does(options):
    model = linear(**options)
    values = torch.randint(NUM_VALUES, (BATCH, LENGTH), device=DEVICE)
    captured = CapturedStepper(model)
    assert largest_step_difference(captured, values) < 1e-5
    drawn, expected = (
        completions(x, LogisticMixture(NUM_VALUES), values.cpu(), known_first(2))
        for x in (captured, RecurrentStepper(model))
    )
    assert torch.equal(drawn, expected)


@pytest.mark.parametrize("name", CONSTANT)
def test_every_state_of_one_size_is_stepped(name):
    values = torch.randint(NUM_VALUES, (BATCH, LENGTH), device=DEVICE)
    assert largest_step_difference(CapturedStepper(constant(name).to(DEVICE)), values) < 1e-5


class Host(TorchDispatchMode):
    """Fails where an operator takes or gives anything that is not on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        assert {x.device.type for x in tensors} <= {"cuda"}, func
        return result


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # nn.LSTM is made
@pytest.mark.parametrize("name", CONSTANT)
def test_a_step_on_a_gpu_never_waits_for_the_host(name):
    """Else no graph could be captured. Tensors without data tell, so no GPU need be there."""
    with FakeTensorMode():
        with torch.device("cuda"):
            model, state = constant(name), StackState(torch.zeros(1, dtype=torch.long), ())
            token = torch.zeros(BATCH, dtype=torch.long)
        on_device = partial(torch.full, (1,), device="cuda")
        layers = tree_map_only(int, on_device, model.init_state(BATCH).layers)
        with torch.inference_mode(), Host():
            model.step(token, state._replace(layers=layers), in_place=True)


def test_what_torch_compile_does_not_take_is_said(raises_one_line):
    with raises_one_line("stepper=fused", "LSTM"):
        FusedStepper(constant("lstm"))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: linear(attention=SoftmaxAttention), "grows with the length"),
        (lambda: linear().double(), "float64"),
        (lambda: linear(max_length=None), "bound"),
    ],
)
def test_where_there_is_none_it_is_said(model, reason, raises_one_line):
    with raises_one_line("stepper=captured", reason):
        CapturedStepper(model())


def test_there_is_a_last_position(raises_one_line):
    """As in every other stepper; a graph on a device would read beyond its tables."""
    distribution = LogisticMixture(NUM_VALUES)
    stepper = CapturedStepper(linear(num_parameters=distribution.num_parameters))
    values = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    start = prefill(stepper, values, known_first(LENGTH - 2))
    noise = uniform_noise(distribution, seed=0, indices=range(BATCH), length=LENGTH)
    loop = stepper.loop(stepper.fork(start, torch.arange(BATCH)), distribution.sample, noise)
    loop.turn()
    with raises_one_line(f"{LENGTH + 1} tokens", f"positions for {LENGTH}"):
        loop.turn()


@pytest.mark.gpu
def test_the_captured_loop_draws_what_the_model_draws_at_full_size():
    """The paper's model of MNIST; a value whose noise falls on an edge may round elsewhere."""
    torch.manual_seed(0)
    distribution = LogisticMixture(256)
    model = autoregressive(
        partial(LinearAttention, feature_map=Elu), num_values=256, max_length=784, num_layers=8,
        num_heads=8, model_dim=256, num_parameters=distribution.num_parameters,
    ).eval().to(DEVICE)  # fmt: skip
    captured = CapturedStepper(model)
    values = torch.randint(256, (64, 784), device=DEVICE)
    assert largest_step_difference(captured, values[:2, :100]) < 1e-3
    known, rows = torch.arange(784) < 776, torch.arange(64)
    noise = uniform_noise(distribution, seed=0, indices=range(64), length=784)
    drawn, again, expected = (
        complete(x, distribution.sample, prefill(x, values, known), rows, noise)
        for x in (captured, captured, RecurrentStepper(model))
    )
    assert torch.equal(drawn, again)
    assert (drawn == expected).all(1).float().mean() > 0.9
