"""chunkwise and step against parallel, the definition."""

from functools import partial

import pytest
import torch
from torch import Tensor

from linear_transformers import ops
from linear_transformers.feature_maps import Elu
from tests.conftest import random_qkv

EPS = 1e-6
LENGTHS = [1, 2, 63, 64, 65, 130]


def features(t: int, **options) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = random_qkv(t, **options)
    phi = Elu(q.shape[-1])
    return phi(q), phi(k), v


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Eq. 9 with loops, so that not even an einsum is taken on trust."""
    out = torch.zeros_like(v)
    for i in range(q.shape[1]):
        weights = [(q[:, i] * k[:, j]).sum(-1, keepdim=True) for j in range(i + 1)]
        total = sum(weights) + EPS
        out[:, i] = sum(w * v[:, j] for j, w in enumerate(weights)) / total
    return out


def test_parallel_is_equation_9():
    q, k, v = features(9)
    torch.testing.assert_close(ops.parallel(q, k, v, eps=EPS)[0], by_hand(q, k, v))


@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("chunk_size", [1, 16, 64])
def test_chunkwise_reproduces_parallel(t, chunk_size):
    q, k, v = features(t)
    expected, expected_state = ops.parallel(q, k, v, eps=EPS)
    outputs, state = ops.chunkwise(q, k, v, eps=EPS, chunk_size=chunk_size)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(state, expected_state)


@pytest.mark.parametrize("t", LENGTHS)
def test_stepping_reproduces_parallel(t):
    q, k, v = features(t)
    expected, expected_state = ops.parallel(q, k, v, eps=EPS)
    state = ops.empty_state(2, 3, 8, 8, device="cpu", dtype=q.dtype)
    for i in range(t):
        output, state = ops.step(q[:, i], k[:, i], v[:, i], state, eps=EPS)
        torch.testing.assert_close(output, expected[:, i])
    torch.testing.assert_close(state, expected_state)


@pytest.mark.parametrize("algorithm", [ops.parallel, partial(ops.chunkwise, chunk_size=16)])
@pytest.mark.parametrize("cut", [1, 16, 23, 64])
def test_a_sequence_can_be_continued_from_its_state(algorithm, cut):
    q, k, v = features(65)
    expected, expected_state = algorithm(q, k, v, eps=EPS)
    first, state = algorithm(q[:, :cut], k[:, :cut], v[:, :cut], eps=EPS)
    kept = ops.LinearState(*(x.clone() for x in state))
    second, end = algorithm(q[:, cut:], k[:, cut:], v[:, cut:], eps=EPS, state=state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), expected)
    torch.testing.assert_close(end, expected_state)
    torch.testing.assert_close(state, kept, rtol=0, atol=0)


@pytest.mark.parametrize("t", [1, 5, 17])
def test_gradients_of_chunkwise_are_right(t):
    q, k, v = (x.requires_grad_() for x in features(t, b=1, h=2, d=3))
    state = ops.LinearState(
        torch.rand(1, 2, 3, 3, dtype=torch.float64, requires_grad=True),
        torch.rand(1, 2, 3, dtype=torch.float64, requires_grad=True),
    )

    def run(q, k, v, kv_sum, k_sum):
        outputs, end = ops.chunkwise(
            q, k, v, eps=EPS, chunk_size=4, state=ops.LinearState(kv_sum, k_sum)
        )
        return outputs, *end

    assert torch.autograd.gradcheck(run, (q, k, v, *state))


@pytest.mark.parametrize("t", [3, 5])
def test_padding_of_the_last_chunk_reaches_no_gradient(t):
    """Without eps, a padded query's weight of 0 would divide by 0 on the way back."""
    inputs = [x.requires_grad_() for x in features(t)]
    outputs, _ = ops.chunkwise(*inputs, eps=0.0, chunk_size=4)
    ours = torch.autograd.grad(outputs.sum(), inputs)
    exact = torch.autograd.grad(ops.parallel(*inputs, eps=0.0)[0].sum(), inputs)
    torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_is_summed_in_float32(dtype):
    """At full length: a bf16 running sum would be off by 238 %, not by rounding of the output."""
    q, k, v = (x.to(dtype) for x in features(3072, b=1, h=2, d=16))
    expected, _ = ops.parallel(*(x.double() for x in (q, k, v)), eps=EPS)
    outputs, state = ops.chunkwise(q, k, v, eps=EPS)
    assert outputs.dtype == dtype
    assert {x.dtype for x in state} == {torch.float32}
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(outputs.double(), expected, rtol=tolerance, atol=tolerance)


def test_autocast_does_not_round_the_sums():
    q, k, v = (x.float() for x in features(130))
    expected, _ = ops.chunkwise(q, k, v, eps=EPS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, state = ops.chunkwise(q, k, v, eps=EPS)
        step_output, _ = ops.step(q[:, 0], k[:, 0], v[:, 0], state, eps=EPS)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0)
    assert step_output.dtype == torch.float32


def test_half_precision_gradients_stay_within_rounding():
    q, k, v = features(257, b=1, h=2, d=16)
    weight = torch.randn_like(v)

    def gradients(dtype):
        inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        outputs, _ = ops.chunkwise(*inputs, eps=EPS)
        return torch.autograd.grad((outputs * weight.to(dtype)).sum(), inputs)

    for exact, rounded in zip(gradients(torch.float64), gradients(torch.bfloat16), strict=True):
        error = (rounded.double() - exact).norm() / exact.norm()
        assert error < 0.01


def test_no_weight_gives_zero_instead_of_nan():
    zeros = torch.zeros(1, 3, 1, 2)
    outputs, _ = ops.chunkwise(zeros, zeros, torch.ones(1, 3, 1, 2), eps=EPS)
    torch.testing.assert_close(outputs, zeros)
