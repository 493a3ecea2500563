"""Optimizers besides torch's."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import LSTM, MultiHeadAttention
from linear_transformers.models import Transformer
from linear_transformers.training import optimizers
from linear_transformers.training.optimizers import Muon, RAdam, orthogonalized

RATE = 0.02


def small_model() -> Transformer:
    torch.manual_seed(0)
    mixer = partial(
        MultiHeadAttention,
        attention=partial(LinearAttention, feature_map=Elu),
        short_convolution=4,
        output_norm=True,
    )
    sizes = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "dropout": 0.0}
    return Transformer(mixer, 16, positions="learned", **sizes)


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 3) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        model.zero_grad()
        x, y = torch.randn(2, 3, 16, 8, generator=generator)
        (model(x) - y).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("rms", [0.2, 0.7])
def test_matrices_of_blocks_are_muons_and_all_else_is_adamws(monkeypatch, rms, low):
    """A step of both of torch's gives the same weights, up to the rounding of its bfloat16."""
    monkeypatch.setattr(optimizers, "faster_in_bfloat16", lambda device: low)
    model, ours = small_model(), small_model()
    layers = ("mixer.project_in", "mixer.project_out", "feedforward.0", "feedforward.3")
    matrices = {f"blocks.{i}.{layer}.weight" for i in range(2) for layer in layers}
    optimizer = Muon(ours.named_parameters(), lr=RATE, weight_decay=0.1, rms=rms)
    names = [set(group["param_names"]) for group in optimizer.param_groups]
    assert names == [matrices, {name for name, _ in model.named_parameters()} - matrices]
    named = dict(model.named_parameters())
    apart = (
        torch.optim.Muon(
            [named.pop(name) for name in named.keys() & matrices],
            lr=RATE * rms / 0.2,
            weight_decay=0.1,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(named.values(), lr=RATE, weight_decay=0.1),
    )
    train(model, *apart, steps=1)
    train(ours, optimizer, steps=1)
    for name, weight in ours.state_dict().items():
        change = (weight - model.state_dict()[name]).square().mean().sqrt()
        assert change <= (0.2 * rms * RATE if name in matrices else 0), name


@pytest.mark.parametrize("rms", [0.2, 0.7])
def test_a_step_is_that_of_the_definition(monkeypatch, rms):
    """Where products are in float32, against float64: Nesterov's momentum, made orthogonal."""
    monkeypatch.setattr(optimizers, "faster_in_bfloat16", lambda device: False)
    model = small_model()
    optimizer = Muon(model.named_parameters(), lr=RATE, weight_decay=0.1, rms=rms)
    group = optimizer.param_groups[0]
    before = [p.detach().double() for p in group["params"]]
    train(model, optimizer, steps=1)
    for parameter, weight in zip(group["params"], before, strict=True):
        gradient = parameter.grad.double()
        momentum = gradient.lerp(gradient * 0.05, 0.95)
        (update,) = orthogonalized(momentum[None], group["ns_coefficients"], 5)
        rate = RATE * rms * max(weight.shape) ** 0.5
        expected = weight * (1 - RATE * rms / 0.2 * 0.1) - rate * update
        torch.testing.assert_close(parameter.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (4, 4)])
def test_singular_values_go_through_the_polynomial(shape):
    """And singular vectors stay: the definition, in float64."""
    torch.manual_seed(0)
    a, b, c = coefficients = (3.4445, -4.7750, 2.0315)
    x = torch.randn(3, *shape, dtype=torch.float64)
    x[1] *= 1e3
    x[2] = 0
    u, s, v = torch.linalg.svd(x[:2], full_matrices=False)
    s = s / s.norm(dim=1, keepdim=True)
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    found = orthogonalized(x, coefficients, 5)
    torch.testing.assert_close(found[:2], u @ (s[..., None] * v))
    assert not found[2].any()


@pytest.mark.parametrize("kind", [Muon, RAdam])
def test_a_state_that_is_loaded_goes_on_to_the_bit(kind):
    whole, halves = small_model(), small_model()
    make = partial(kind, lr=RATE)
    train(whole, optimizer := make(whole.named_parameters()), steps=4)
    train(whole, optimizer, steps=4)
    train(halves, first := make(halves.named_parameters()), steps=4)
    second = make(halves.named_parameters())
    second.load_state_dict(first.state_dict())
    train(halves, second, steps=4)
    assert all(map(torch.equal, whole.parameters(), halves.parameters()))


def test_a_copy_goes_on_and_no_group_is_added(raises_one_line):
    model = small_model()
    train(model, optimizer := Muon(model.named_parameters(), lr=RATE), steps=2)
    for again in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        both, twin = again((model, optimizer))
        train(both, twin, steps=2)
        assert not any(map(torch.equal, model.parameters(), both.parameters()))
    with raises_one_line("Muon"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, 2))]})


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"weight_decay": 0.1},
        {"maximize": True, "eps": 1e-3, "betas": (0.8, 0.9)},
    ],
)
def test_radam_is_torchs(options):
    """Before its rate is rectified and after, where a parameter joins late, and from a state of
    torch's."""
    torch.manual_seed(0)

    def trained(first: Callable, then: Callable) -> tuple[list, dict]:
        shapes = ((3, 5), (5,), (2,))
        generator = torch.Generator().manual_seed(1)
        given: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
        parameters = nn.ParameterList(torch.randn(shape, **given) for shape in shapes)
        optimizer = first(parameters.parameters(), lr=RATE, **options)
        for i in range(24):
            if i == 12:
                state, optimizer = optimizer.state_dict(), then(parameters.parameters())
                optimizer.load_state_dict(state)
            for j, parameter in enumerate(parameters):
                gradient = torch.randn(parameter.shape, **given)
                parameter.grad = None if j == 2 and i < 4 else gradient
            optimizer.step()
        return list(parameters), optimizer.state_dict()

    expected = trained(torch.optim.RAdam, torch.optim.RAdam)
    for first, then in ((RAdam, RAdam), (torch.optim.RAdam, RAdam), (RAdam, torch.optim.RAdam)):
        torch.testing.assert_close(trained(first, then), expected, rtol=1e-12, atol=1e-12)


def test_a_schedule_changes_the_rate_of_all():
    model = small_model()
    optimizer = Muon(model.named_parameters(), lr=RATE, weight_decay=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer)
    schedule.step()
    assert all(map(torch.equal, before, model.parameters()))


def test_an_lstms_matrices_are_muons_too():
    sizes = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "dropout": 0.0}
    model = Transformer(LSTM, **sizes, positions="none")
    optimizer = Muon(model.named_parameters())
    matrices = {id(parameter) for parameter in optimizer.param_groups[0]["params"]}
    cells = [mixer.cells for mixer in model.mixers]
    weights = [w for each in cells for w in (each.weight_ih_l0, each.weight_hh_l0)]
    assert {id(weight) for weight in weights} < matrices
    assert (
        not {id(bias) for each in cells for bias in each.parameters() if bias.ndim == 1} & matrices
    )


def test_a_model_without_such_matrices_is_refused(raises_one_line):
    with raises_one_line("found no matrix whose name matches layers. Set optimizer.matrices"):
        Muon(small_model().named_parameters(), matrices="layers")
    with raises_one_line("optimizer.matrices=( is no regular expression", "missing )"):
        Muon(small_model().named_parameters(), matrices="(")
