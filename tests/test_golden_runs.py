"""Training computes what it computed: losses, gradient norms, validation and test of small runs.

They were recorded on one machine, with one thread, torch 2.14 and eSpeak NG as espeakng-loader
0.2.4 has it. `tests/golden/make.py` records them anew where a change is meant.
"""

import pytest

from tests.golden.runs import RUNS, expected, trained

EXPECTED = expected()
# Of other processors and numbers of threads. With two threads, and vectors of other widths or none,
# gradient norms changed by up to 2.4e-5, all else by 8e-7.
ROUNDING = 2e-5
ROUNDING_OF_GRADIENTS = 2e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_figures_it_had(folder, name):
    for figure, values in trained(name, folder).items():
        rounding = ROUNDING_OF_GRADIENTS if figure == "train/gradient_norm" else ROUNDING
        assert values == pytest.approx(EXPECTED[name][figure], rel=rounding), figure
