"""A kernel and the definition from the same inputs: outputs, states and all gradients."""

import torch

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
        ((x.double() - y).norm() / y.norm()).item() for x, y in zip(found, expected, strict=True)
    ]


def exactly(given):
    return [x.detach().double().requires_grad_() for x in given]
