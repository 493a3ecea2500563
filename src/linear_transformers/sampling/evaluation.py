"""Compare a stepper with `forward`, and evaluate sequences in bits per dimension."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.models.dropout import check_eval
from linear_transformers.sampling.completion import greedy
from linear_transformers.sampling.stepper import Prefilled, Stepper
from linear_transformers.shapes import Known, Tokens

EVALUATED = 4  # sequences at a time: activations of a whole sequence are kept


@torch.inference_mode()
def largest_step_difference(stepper: Stepper, values: Tokens) -> float:
    """Return the largest difference of a stepper's outputs from those of `forward`.

    The stepper reads the values one by one: all of them, then the second half after a prefill of
    the first.
    """
    model, length = stepper.model, values.shape[1]
    expected = model(model.with_start(values)[:, :-1])
    nothing, noise = (
        torch.zeros_like(values, dtype=torch.bool),
        expected.new_zeros(*values.shape, 1),
    )
    largest = []
    for given in (0, length // 2):
        outputs, state = stepper.prefill(model.with_start(values[:, :given]))
        start = Prefilled(values, nothing, range(given, length), outputs[:, -1], state)
        loop = stepper.loop(start, greedy, noise)
        parts = [outputs]
        for _ in start.places[:-1]:
            loop.turn()
            parts.append(loop.parameters.unsqueeze(1).clone())
        largest.append((torch.cat(parts, dim=1) - expected).abs().max())
    return torch.stack(largest).max().item()


@torch.inference_mode()
def log_probabilities(
    model: AutoregressiveTransformer, distribution: ValueDistribution, values: Int[Tensor, "b t"]
) -> Float[Tensor, "b t"]:
    """Return the log-probability of each value given those before it, in nats, on the CPU.

    Args:
        model: The model, in `eval()` mode.
        distribution: The distribution of a value.
        values: The sequences, from their first value on.

    Raises:
        ValueError: The model is in `train()` mode.
    """
    check_eval(model)
    parts = []
    for part in values.to(model.device).split(EVALUATED):
        parameters = model(model.with_start(part)[:, :-1])
        parts.append(distribution.log_prob(parameters, part).cpu())
    return torch.cat(parts)


def bits_per_dim(
    model: AutoregressiveTransformer,
    distribution: ValueDistribution,
    values: Int[Tensor, "b t"],
    known: Known,
) -> tuple[list[float], list[float]]:
    """Return the bits per dimension of each sequence: over all values, and over the hidden ones.

    Args:
        model: The model, in `eval()` mode.
        distribution: The distribution of a value.
        values: Whole sequences.
        known: Which values were given; where all were, the second list holds NaN.
    """
    bits = -log_probabilities(model, distribution, values) / math.log(2)
    return bits.mean(1).tolist(), bits[:, ~known].mean(1).tolist()
