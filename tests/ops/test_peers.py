"""The kernels of other libraries keep the contract of ours, where they are installed."""

import pytest
import torch

from linear_transformers import kernels
from linear_transformers.feature_maps import Elu
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.recurrent import LinearState
from tests.conftest import random_qkv

EPS = 1e-6


@pytest.mark.parametrize("name", ["fast_transformers", "fla"])
@pytest.mark.parametrize("t", [1, 63, 130])
def test_they_reproduce_parallel(name, t):
    """From a state, with all gradients."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernel = kernels.KERNELS[name]
    if reason := kernel.unavailable(device, torch.float32):
        pytest.skip(reason)
    phi = Elu(16)
    q, k, v = random_qkv(t, d=16)
    state = (torch.rand(2, 3, 16, 16, dtype=q.dtype), torch.rand(2, 3, 16, dtype=q.dtype))
    exact = [x.to(device).requires_grad_() for x in (phi(q), phi(k), v, *state)]
    given = [x.detach().float().requires_grad_() for x in exact]

    def results(run, inputs):
        outputs, end = run(*inputs[:3], eps=EPS, state=LinearState(*inputs[3:]))
        found = (outputs, *end)
        return *found, *torch.autograd.grad(sum(x.square().sum() for x in found), inputs)

    for found, expected in zip(results(kernel.run, given), results(parallel, exact), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


def test_where_they_are_not_installed_it_is_said(monkeypatch, raises_one_line):
    monkeypatch.setattr("linear_transformers.ops.peers.find_spec", lambda name: None)
    for name, package in (("fast_transformers", "pytorch-fast-transformers"), ("fla", "flash-")):
        with raises_one_line(f"kernel={name}", f"{package}", "not installed", "kernel=auto"):
            kernels.chosen(name, torch.device("cpu"))
