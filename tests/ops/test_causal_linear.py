"""parallel against eq. 9 by hand; chunkwise and recurrent against parallel."""

from functools import partial

import pytest
import torch
from torch import Tensor

from linear_transformers.feature_maps import Elu
from linear_transformers.ops import chunks
from linear_transformers.ops.chunkwise import chunkwise
from linear_transformers.ops.decayed import decayed
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.recurrent import empty_state, step
from linear_transformers.testing import random_qkv

EPS = 1e-6
LENGTHS = [1, 2, 63, 64, 65, 130]
PHI = Elu(8)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Eq. 8 with loops, so that not even an einsum is taken on trust."""
    out = torch.zeros_like(v)
    for i in range(q.shape[1]):
        weights = [(q[:, i] * k[:, j]).sum(-1, keepdim=True) for j in range(i + 1)]
        total = sum(weights) + EPS
        out[:, i] = sum(w * v[:, j] for j, w in enumerate(weights)) / total
    return out


def test_parallel_is_equation_8():
    q, k, v = random_qkv(9)
    expected = by_hand(PHI(q), PHI(k), v)
    torch.testing.assert_close(parallel(q, k, v, eps=EPS, phi=PHI)[0], expected)
    torch.testing.assert_close(parallel(PHI(q), PHI(k), v, eps=EPS)[0], expected)


@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("chunk_size", [1, 16, 64])
def test_chunkwise_reproduces_parallel(t, chunk_size):
    run = partial(chunkwise, chunk_size=chunk_size)
    outputs, state = run(*random_qkv(t), eps=EPS, phi=PHI)
    expected, expected_state = parallel(*random_qkv(t), eps=EPS, phi=PHI)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(state, expected_state)
    assert all(sums.is_contiguous() for sums in state)


def test_a_state_keeps_no_others_in_memory():
    """Of one head, too: there, the last chunk's is contiguous as it is."""
    q, k, v = random_qkv(65, b=1, h=1)
    for sums in chunkwise(q, k, v, eps=EPS)[1]:
        assert sums.untyped_storage().nbytes() == sums.nbytes
    state = decayed(q, k, v, torch.zeros(1, 65, 1, 1, dtype=q.dtype))[1]
    assert state.untyped_storage().nbytes() == state.nbytes


@pytest.mark.parametrize("positions", [1, 24, 36, 60])
def test_segments_do_not_change_what_chunkwise_computes(monkeypatch, positions):
    """Forward and backward, phi included: as many positions at a time as the cache holds."""
    inputs = [x.requires_grad_() for x in random_qkv(65)]
    weight = torch.randn(65, 1, 1)

    def run(algorithm):
        outputs, end = algorithm(*inputs, eps=EPS, phi=PHI)
        loss = (outputs * weight).sum() + end.kv_sum.square().sum() + end.k_sum.sum()
        return outputs, end, torch.autograd.grad(loss, inputs)

    monkeypatch.setattr(chunks, "CACHED_ROWS", positions * 2 * 3)  # sequences, heads
    torch.testing.assert_close(run(partial(chunkwise, chunk_size=12)), run(parallel))


@pytest.mark.parametrize("t", LENGTHS)
def test_stepping_reproduces_parallel(t):
    q, k, v = random_qkv(t)
    expected, expected_state = parallel(q, k, v, eps=EPS, phi=PHI)
    state = empty_state(2, 3, 8, 8, device="cpu", dtype=q.dtype)
    for i in range(t):
        output, state = step(PHI(q[:, i]), PHI(k[:, i]), v[:, i], state, eps=EPS)
        torch.testing.assert_close(output, expected[:, i])
    torch.testing.assert_close(state, expected_state)


@pytest.mark.parametrize("t", [3, 5])
def test_padding_of_the_last_chunk_reaches_no_gradient(t):
    """Without eps, a padded query's weight of 0 would divide by 0 on the way back."""
    inputs = [x.requires_grad_() for x in random_qkv(t)]
    outputs, _ = chunkwise(*inputs, eps=0.0, phi=PHI, chunk_size=4)
    ours = torch.autograd.grad(outputs.sum(), inputs)
    exact = torch.autograd.grad(parallel(*inputs, eps=0.0, phi=PHI)[0].sum(), inputs)
    torch.testing.assert_close(ours, exact)
