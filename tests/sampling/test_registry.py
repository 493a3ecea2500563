"""A stepper is chosen by name, and refused in one line where it cannot run."""

import copy
from functools import partial

import pytest
import torch

from linear_transformers import kernels
from linear_transformers.attention import LinearAttention, SoftmaxAttention, SparseAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.sampling import (
    STEPPERS,
    CompiledStepper,
    RecurrentStepper,
    largest_step_difference,
    stepper_of,
)
from linear_transformers.sampling.registry import preferred
from tests.conftest import autoregressive

LENGTH, NUM_VALUES = 6, 17
ATTENTIONS = {
    "linear": partial(LinearAttention, feature_map=Elu), "softmax": SoftmaxAttention,
    "sparse": SparseAttention,
}  # fmt: skip


def build(attention: str = "linear"):
    torch.manual_seed(0)
    return autoregressive(
        ATTENTIONS[attention], num_values=NUM_VALUES, num_parameters=30, max_length=LENGTH,
        num_layers=2, num_heads=2, model_dim=24,
    ).eval()  # fmt: skip


# Not fused, which test_captured.py runs in a process without the tests' checks of shapes.
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", ["auto", *(name for name in STEPPERS if name != "fused")])
def test_every_stepper_computes_what_forward_computes(name, attention):
    model = build(attention)
    if name != "auto" and (reason := STEPPERS[name].unavailable(model)):
        pytest.skip(reason)
    stepper = stepper_of(model, name=name)
    assert name in ("auto", stepper.name)
    assert stepper.description.startswith(stepper.name)
    values = torch.randint(NUM_VALUES, (3, LENGTH))
    assert largest_step_difference(stepper, values) < 1e-5


def test_the_compiled_stepper_is_chosen_where_it_can_run():
    assert stepper_of(build("sparse")).name == "recurrent"
    assert stepper_of(build(), precision="float64").name == "recurrent"
    if CompiledStepper.unavailable(build()) is None:
        assert stepper_of(build()).name == stepper_of(build(), precision="int8").name == "compiled"


@pytest.mark.parametrize("name", ["recurrent", "recomputed"])
def test_weights_take_on_the_precision(name):
    model = stepper_of(build(), name=name, precision="bfloat16").model
    assert model.tokens.weight.dtype == model.stack.blocks[0].mixer.project_in.weight.dtype
    assert model.tokens.weight.dtype == torch.bfloat16
    # Means in bfloat16 are coarser than the gap between levels.
    assert model.head.weight.dtype == model.stack.norm.weight.dtype == torch.float32


@pytest.mark.skipif(kernels.step_unavailable() is not None, reason="no compiler")
def test_the_compiled_stepper_rounds_the_weights_of_blocks_only():
    model = build()
    exact = copy.deepcopy(model)
    stepper_of(model, name="compiled", precision="bfloat16")
    assert torch.equal(model.head.weight, exact.head.weight)
    rounded = exact.stack.blocks[0].mixer.project_in.weight.bfloat16().float()
    assert torch.equal(model.stack.blocks[0].mixer.project_in.weight, rounded)


@pytest.mark.parametrize(
    ("device", "most", "first"),
    [
        ("cpu", 784, "compiled"), ("cuda", 784, "captured"), ("cuda", None, "captured"),
        ("cuda", 64, "recurrent"), ("mps", 784, "recurrent"),
    ],
)  # fmt: skip
def test_auto_is_what_is_fastest_on_a_device(device, most, first):
    kinds = preferred(torch.device(device), most)
    assert kinds[0].name == first
    assert kinds[-1] is RecurrentStepper  # which runs everywhere


def test_without_a_precision_no_weight_changes():
    model = build().bfloat16()
    stepper = stepper_of(model)
    assert stepper.name == "recurrent"
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("attention", "options", "words"),
    [
        ("linear", {"name": "fast"}, ("stepper=fast", "recomputed")),
        ("linear", {"precision": "half"}, ("precision=half", "float16")),
        ("linear", {"name": "recurrent", "precision": "int8"}, ("=recurrent", "=int8", "auto")),
        ("linear", {"name": "compiled", "precision": "float64"}, ("=compiled", "=float64", "int8")),
        ("sparse", {"name": "compiled"}, ("stepper=compiled", "linear attention", "auto")),
        ("sparse", {"precision": "int8"}, ("precision=int8", "linear attention", "float32")),
    ],
)
def test_what_cannot_run_is_refused(attention, options, words, raises_one_line):
    with raises_one_line(*words):
        stepper_of(build(attention), **options)
