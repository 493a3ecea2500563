"""A kernel and the definition from the same inputs: outputs, states and all gradients."""

import torch

from linear_transformers.feature_maps import Elu
from linear_transformers.ops.parallel import parallel
from linear_transformers.ops.recurrent import LinearState

EPS = 1e-6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(t: int, c: int, m: int, *, b: int = 2, h: int = 2, dtype=torch.float32, device=DEVICE):
    """Queries, keys, values and a state, in float64 what they are in `dtype`."""
    torch.manual_seed(t + c)
    tensors = [torch.randn(b, t, h, width).to(dtype) for width in (c, c, m)]
    tensors += [torch.rand(b, h, c, m), torch.rand(b, h, c)]
    return [x.to(device).requires_grad_() for x in tensors]


def results(algorithm, given, *, phi):
    """Outputs, the state after them, and the gradients of a random weighing of all of these."""
    q, k, v, *state = given
    outputs, end = algorithm(q, k, v, eps=EPS, phi=phi, state=LinearState(*state))
    found = (outputs, *end)
    generator = torch.Generator().manual_seed(0)
    weighed = [
        (x.double() * torch.randn(x.shape, generator=generator).to(x.device)).sum() for x in found
    ]
    return *found, *torch.autograd.grad(sum(weighed), given)


def errors(found, expected) -> list[float]:
    return [
        ((x.double() - y).norm() / y.norm().clamp(1e-30)).item()
        for x, y in zip(found, expected, strict=True)
    ]


def exactly(given):
    return [x.detach().double().requires_grad_() for x in given]


def check_parts(algorithm, t: int, c: int, m: int, **options) -> None:
    """Assert the gradients of some results alone, at the start of sequences and after a state."""
    given = inputs(t, c, m, **options)
    for leaves in (given[:3], given):
        exact = exactly(leaves)
        ours, theirs = _results(algorithm, leaves, c), _results(parallel, exact, c)
        for of in ((0,), (1,), (2,), (0, 2)):
            found, expected = _gradients(ours, leaves, of), _gradients(theirs, exact, of)
            assert max(errors(found, expected)) < 2e-6, (of, len(leaves))


def _results(algorithm, leaves, c):
    state = LinearState(*leaves[3:]) if leaves[3:] else None
    outputs, end = algorithm(*leaves[:3], eps=EPS, phi=Elu(c), state=state)
    return outputs, *end


def _gradients(every, leaves, of):
    wanted = [every[i] for i in of]
    weights = [torch.linspace(-1, 2, x.numel()).reshape(x.shape).to(x) for x in wanted]
    options = {"allow_unused": True, "retain_graph": True}
    gradients = torch.autograd.grad(wanted, leaves, weights, **options)
    zeros = (torch.zeros_like(x) for x in leaves)
    return [y if x is None else x for x, y in zip(gradients, zeros, strict=True)]
