"""phi, where rounding and kinks could spoil it, and the kernels that maps stand for."""

import math

import pytest
import torch
import torch.nn.functional as F

from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import (
    Dpfp,
    Elu,
    Favor,
    Fourier,
    Hedgehog,
    Polynomial,
    Relu,
    Taylor,
)

MAPS = (Dpfp, Elu, Favor, Fourier, Hedgehog, Polynomial, Relu, Taylor)


def pairs(d: int, n: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, d, dtype=torch.float64), torch.randn(n, d, dtype=torch.float64)


def test_elu_is_elu_plus_one():
    x = torch.linspace(-10, 10, 201, dtype=torch.float64)
    torch.testing.assert_close(Elu(1)(x), F.elu(x) + 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_elu_does_not_cancel_in_low_precision(dtype):
    x = torch.tensor([-8.0, -6.0, -1.0, 0.0, 1.0], dtype=dtype)
    expected = torch.where(x > 0, x.double() + 1, x.double().exp())
    assert Elu(1)(x).dtype == dtype
    torch.testing.assert_close(
        Elu(1)(x).double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-7
    )


def test_elu_is_finite_with_its_gradient_at_extremes():
    x = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], requires_grad=True)
    (gradient,) = torch.autograd.grad(Elu(1)(x).sum(), x)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]))


@pytest.mark.parametrize("d", [1, 7, 8])
@pytest.mark.parametrize("make", MAPS)
def test_maps_state_their_width(make, d):
    phi = make(d)
    assert phi(torch.randn(2, d)).shape[-1] == phi.feature_dim


@pytest.mark.parametrize("offset", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("d", [1, 7, 32])
def test_polynomial_features_are_the_polynomial_kernel(d, offset):
    q, k = pairs(d)
    phi = Polynomial(d, offset=offset)
    assert phi.feature_dim == (d + 1) * (d + 2) // 2
    kernel = ((q * k).sum(-1) / math.sqrt(d) + offset).square()
    torch.testing.assert_close((phi(q) * phi(k)).sum(-1), kernel)


@pytest.mark.parametrize("d", [1, 7, 32])
def test_taylor_features_are_the_second_order_exponential(d):
    q, k = pairs(d)
    phi = Taylor(d)
    score = (q * k).sum(-1) / math.sqrt(d)
    torch.testing.assert_close((phi(q) * phi(k)).sum(-1), 1 + score + score.square() / 2)


def softmax_kernel(q, k):
    return ((q * k).sum(-1) / math.sqrt(q.shape[-1])).exp()


def gaussian_kernel(q, k):
    return (-(q - k).square().sum(-1) / (2 * math.sqrt(q.shape[-1]))).exp()


@pytest.mark.parametrize(("make", "kernel"), [(Favor, softmax_kernel), (Fourier, gaussian_kernel)])
def test_random_features_converge_to_their_kernel(make, kernel):
    """Unbiased, with an error that falls as one over the root of their number."""
    d, draws = 8, 200
    q, k = (x / 2 for x in pairs(d, 16))
    exact = kernel(q, k)

    def estimates(n: int) -> torch.Tensor:
        maps = [make(d, num_directions=n).double() for _ in range(draws)]
        return torch.stack([(phi(q) * phi(k)).sum(-1) for phi in maps])

    few, many = (estimates(n) for n in (16, 1024))
    standard_error = few.std(0) / math.sqrt(draws)
    assert ((few.mean(0) - exact).abs() < 5 * standard_error).all()
    rate = (few - exact).square().mean().sqrt() / (many - exact).square().mean().sqrt()
    assert 6 < rate < 11  # the root of 1024 / 16 is 8


def test_directions_are_orthogonal_in_blocks_and_normal_in_length():
    directions = Favor(8, num_directions=4000).directions.double()
    blocks = F.normalize(directions, dim=-1).unflatten(0, (-1, 8))
    torch.testing.assert_close(
        blocks @ blocks.mT, torch.eye(8, dtype=torch.float64).expand(500, 8, 8), atol=1e-5, rtol=0
    )
    assert directions.square().sum(-1).mean().item() == pytest.approx(8, rel=0.05)
    assert directions.mean(0).abs().max() < 0.1


def test_favor_is_positive_and_fourier_weights_may_be_negative():
    q, k = (3 * x for x in pairs(8))
    assert (Favor(8)(q) > 0).all()
    phi = Fourier(8, num_directions=4)
    assert ((phi(q) * phi(k)).sum(-1) < 0).any()


def test_favor_takes_long_vectors_where_eps_is_small():
    """As its docstring says."""
    q, k = (2 * torch.randn(2, 65, 1, 64) for _ in range(2))
    ones = torch.ones_like(q)
    ours, usual = (LinearAttention(1, 64, feature_map=Favor, **eps) for eps in ({"eps": 1e-30}, {}))
    torch.testing.assert_close(ours(q, k, ones), ones, atol=1e-4, rtol=0)
    assert usual(q, k, ones).min() < 0.1


def test_random_features_change_when_asked_in_training_only():
    phi = Favor(8).eval()
    before = phi.directions.clone()
    with pytest.raises(RuntimeError, match="eval"):
        phi.redraw()
    assert torch.equal(phi.directions, before)
    phi.train().redraw()
    assert not torch.equal(phi.directions, before)
    assert "directions" in phi.state_dict()


def test_dpfp_is_products_of_rectified_neighbours():
    x = torch.randn(5, dtype=torch.float64)
    r = [max(value, 0.0) for value in [*x.tolist(), *(-x).tolist()]]
    expected = [r[i] * r[(i - j) % 10] for j in (1, 2, 3) for i in range(10)]
    torch.testing.assert_close(Dpfp(5, order=3)(x), torch.tensor(expected, dtype=torch.float64))


def test_hedgehog_starts_as_softmax_of_both_signs():
    x = torch.randn(5, 8)
    expected = torch.cat([x.softmax(-1), (-x).softmax(-1)], dim=-1)
    torch.testing.assert_close(Hedgehog(8)(x), expected)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Polynomial(8, offset=-1.0), "offset=-1.0"),
        (lambda: Favor(8, num_directions=0), "num_directions=0"),
        (lambda: Dpfp(8, order=16), "order=16"),
    ],
)
def test_numbers_that_no_map_has_are_refused(make, words, raises_one_line):
    with raises_one_line(words):
        make()
