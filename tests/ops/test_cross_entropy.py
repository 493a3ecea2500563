"""The cross-entropy of many classes is that of all their scores, and so are its gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linear_transformers.ops.cross_entropy import FEW, IGNORED, cross_entropy


@pytest.mark.parametrize("classes", [7, FEW + 3])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("known", [True, False], ids=["torch has it", "torch lacks it"])
def test_nats_and_gradients_are_those_of_all_scores(classes, label_smoothing, known, monkeypatch):
    if not known:
        monkeypatch.delattr(nn, "LinearCrossEntropyOptions", raising=False)
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(n, 16, dtype=torch.float64, generator=generator).requires_grad_()
        for n in (301, classes)
    )
    targets = torch.randint(classes, (301,), generator=generator)
    targets[[0, 17, 300]] = IGNORED

    def results(nats):
        return nats, *torch.autograd.grad(3 * nats, (x, weight))

    scores = F.linear(x, weight).log_softmax(-1)
    kept = targets != IGNORED
    chosen = scores[kept, targets[kept]].sum()
    smooth = scores[kept].mean(-1).sum()
    expected = -(1 - label_smoothing) * chosen - label_smoothing * smooth
    found = cross_entropy(x, weight, targets, label_smoothing=label_smoothing)
    torch.testing.assert_close(results(found), results(expected))


@pytest.mark.parametrize("classes", [7, FEW + 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_many_targets_are_kept_in_float32(classes, dtype):
    """As those of the same numbers in float64: in float16, 20,000 targets would be infinite."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 16, generator=generator).to(dtype) for n in (20_000, classes))
    targets = torch.randint(classes, (20_000,), generator=generator)
    expected = cross_entropy(x.double(), weight.double(), targets, label_smoothing=0.1)
    assert expected > torch.finfo(torch.float16).max
    with torch.autocast("cpu", torch.bfloat16):
        found = cross_entropy(x, weight, targets, label_smoothing=0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
