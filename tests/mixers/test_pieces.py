"""Sequences cut over devices: every output and gradient is that of one device."""

import os
import subprocess
import sys

import pytest
import torch

from linear_transformers.ops.pieces import Place
from tests.conftest import PROJECT
from tests.mixers.pieces import (
    CASES,
    DEVICES,
    DTYPES,
    HEADS,
    LENGTHS,
    MIXERS,
    STACKS,
    WIDTH,
    build,
    results,
)
from tests.mixers.test_contract import ALL
from tests.programs import join


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of some devices has of each case."""
    folder = tmp_path_factory.mktemp("pieces")
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.mixers.pieces", str(rank), str(folder)],
            cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(max(DEVICES))
    ]  # fmt: skip
    join(processes)
    return {
        devices: [torch.load(folder / f"{devices}-{rank}.pt") for rank in range(devices)]
        for devices in DEVICES
    }


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", [*MIXERS, *STACKS])
def test_pieces_have_the_outputs_and_gradients_of_the_whole(found, name, devices):
    """Uneven ones, and such as are shorter than what a convolution remembers."""
    for case in CASES:
        _, length, dtype = case
        if case[0] != name:
            continue
        expected = results(build(name, dtype), length)
        parts = [of_device[case][0] for of_device in found[devices]]
        assert parts[0].keys() == expected.keys()
        for part, whole in expected.items():
            along = part in ("outputs", "x")  # else a gradient of weights: a sum over devices
            pieces = [one[part] for one in parts]
            ours = torch.cat(pieces, dim=1) if along else torch.stack(pieces).sum(0)
            error = (ours - whole).norm() / whole.norm().clamp(min=1e-3)
            assert error < DTYPES[dtype], (part, length, dtype, error)


@pytest.mark.parametrize("name", [*MIXERS, *STACKS])
def test_what_is_sent_does_not_depend_on_the_length(found, name):
    short, long = ((name, length, torch.float64) for length in LENGTHS[1:])
    for of_devices in found.values():
        for of_device in of_devices:
            assert 0 < of_device[short][1] == of_device[long][1]


def test_every_recurrence_can_be_cut():
    constant = [name for name in ALL if ALL[name](WIDTH, HEADS).constant_state]
    # Their states are no linear functions of those before.
    assert [name for name in constant if name not in ("lstm", "lsh all", "window all")] == MIXERS


def test_fewer_positions_than_devices_are_refused(raises_one_line):
    with raises_one_line("3 positions", "4 pieces"):
        Place(0, 4).piece(3)
