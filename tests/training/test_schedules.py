"""The learning rate at each step, as one would draw it."""

import pytest
import torch

from linear_transformers.training import schedules

TOTAL = 100


def rates(schedule, lr: float = 1.0, **options) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    made = schedule(optimizer, TOTAL, **options)
    found = []
    for _ in range(TOTAL):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if made is not None:
            made["scheduler"].step()
    return found


def test_constant_keeps_the_rate():
    assert set(rates(schedules.constant, lr=0.3)) == {0.3}


def test_warmup_cosine_rises_then_falls_to_its_end():
    found = rates(schedules.warmup_cosine, lr=2.0, warmup=0.1, final=0.01)
    assert found[0] == pytest.approx(0.2)
    assert found[9] == max(found) == pytest.approx(2.0)
    assert found[:10] == sorted(found[:10])
    assert found[10:] == sorted(found[10:], reverse=True)
    assert found[-1] == pytest.approx(0.02, rel=0.1)


def test_a_continued_run_follows_the_longer_curve():
    """torch's own cosine would climb back to its top after its old end."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    short = schedules.warmup_cosine(optimizer, TOTAL)["scheduler"]
    for _ in range(TOTAL):
        optimizer.step()
        short.step()
    state = short.state_dict()
    long = schedules.warmup_cosine(optimizer, 2 * TOTAL)["scheduler"]
    long.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(rates_at(2 * TOTAL, TOTAL))
    found = []
    for _ in range(TOTAL):
        optimizer.step()
        long.step()
        found.append(optimizer.param_groups[0]["lr"])
    assert found[0] == pytest.approx(rates_at(2 * TOTAL, TOTAL + 1))
    assert found == sorted(found, reverse=True)


def rates_at(total: int, step: int) -> float:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    made = schedules.warmup_cosine(optimizer, total)["scheduler"]
    return made.lr_lambdas[0](step)


def test_inverse_sqrt_is_the_schedule_of_2017():
    """Equation 3 of Vaswani et al., whose first step is number 1."""
    width, warmup = 512, 40
    peak = (width * warmup) ** -0.5
    found = rates(schedules.inverse_sqrt, lr=peak, warmup=warmup)
    steps = range(1, TOTAL + 1)
    expected = [width**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in steps]
    assert found == pytest.approx(expected)
    assert max(found) == found[warmup - 1] == pytest.approx(peak)


def test_step_down_is_the_copy_tasks_schedule():
    found = rates(schedules.step_down, lr=1e-3, at=30, factor=0.1)
    assert found[29] == pytest.approx(1e-3)
    assert found[30] == pytest.approx(1e-4)


def test_on_plateau_halves_when_nothing_improves():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    made = schedules.on_plateau(optimizer, TOTAL, monitor="val/x", factor=0.5, patience=2)
    assert made["monitor"] == "val/x"
    for value in (1.0, 1.0, 1.0, 1.0):
        made["scheduler"].step(value)
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("options", "said"),
    [({"warmup": 1.0}, "warmup=1.0"), ({"final": -0.1}, "final=-0.1")],
)
def test_fractions_outside_their_range_are_refused(options, said, raises_one_line):
    with raises_one_line(said, "must be"):
        rates(schedules.warmup_cosine, **options)


def test_a_run_without_end_cannot_have_a_cosine(raises_one_line):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with raises_one_line("known length", "scheduler=constant"):
        schedules.warmup_cosine(optimizer, float("inf"))
