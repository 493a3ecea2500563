"""phi, where rounding and kinks could spoil it."""

import pytest
import torch
import torch.nn.functional as F

from linear_transformers.feature_maps import Elu, Relu


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


def test_maps_state_their_width():
    for phi in (Elu(8), Relu(8)):
        assert phi(torch.randn(2, 8)).shape[-1] == phi.feature_dim
