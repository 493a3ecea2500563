"""Checkpoints that users have load, sample, transcribe, are judged and go on training as before.

What is expected was recorded with the code that wrote them: see `tests/checkpoints/cases.py`.
Images and words are equal, since rounding hardly ever changes which value is drawn or heard.
"""

import pytest

from tests.checkpoints.cases import (
    CASES,
    Place,
    continued,
    expected,
    heard,
    hearings_of,
    jobs_of,
    judged,
    sampled,
    unpack,
)

EXPECTED = expected()
# Of other processors and numbers of threads. With two threads, and vectors of other widths or none,
# figures changed by up to 3e-7, those of four further steps too.
ROUNDING = 2e-5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """One corpus for all recognisers."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def place(data, tmp_path):
    return Place(tmp_path, data)


@pytest.mark.parametrize(("name", "job"), [(name, job) for name in CASES for job in jobs_of(name)])
def test_an_old_checkpoint_samples_the_same_images(place, name, job):
    unpack(name, place)
    assert sampled(name, place, job) == EXPECTED[name][job]


@pytest.mark.parametrize(
    ("name", "job"), [(name, job) for name in CASES for job in hearings_of(name)]
)
def test_an_old_checkpoint_hears_the_same_phones(place, name, job):
    unpack(name, place)
    assert heard(name, place, job) == EXPECTED[name][job]


@pytest.mark.parametrize("name", CASES)
def test_an_old_checkpoint_has_the_same_test_figures(place, name):
    unpack(name, place)
    for figure, values in judged(name, place).items():
        assert values == pytest.approx(EXPECTED[name]["judged"][figure], rel=ROUNDING), figure


@pytest.mark.parametrize("name", CASES)
def test_an_old_checkpoint_goes_on_training_with_the_same_losses(place, name):
    unpack(name, place)
    for figure, values in continued(name, place).items():
        assert values == pytest.approx(EXPECTED[name]["continued"][figure], rel=ROUNDING), figure


def test_what_was_averaged_and_what_was_not_can_be_told_apart():
    """Otherwise the images would not show which of the two was loaded."""
    assert EXPECTED["ema"]["raw"] != EXPECTED["ema"]["completed"]
