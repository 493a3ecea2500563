"""Generate values one at a time, at constant cost per value where attention is linear."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.shapes import Tokens

# CPU matrix products round a row differently when it comes in a batch of 1, 2 or 3 (or in
# what is left over from fours) than in fours. Padded to fours, a row does not know its batch.
_ROW_MULTIPLE = 4


def uniform_noise(
    distribution: ValueDistribution, *, seed: int, indices: Sequence[int], length: int
) -> Float[Tensor, "b t z"]:
    """The randomness of whole sequences: each depends on the seed and its own index only.

    Args:
        distribution: Says how many numbers a value takes.
        seed: Of the job.
        indices: Of the sequences, one row each.
        length: Values a sequence.
    """
    shape = (length, distribution.noise_dim)
    # numpy hashes the pair; torch's CPU generator would look at 32 bits of one number only.
    rows = [np.random.default_rng((seed, index)).random(shape, np.float32) for index in indices]
    return torch.from_numpy(np.stack(rows))


@torch.inference_mode()
def complete(
    model: AutoregressiveTransformer,
    distribution: ValueDistribution,
    prefix: Int[Tensor, "b known"],
    noise: Float[Tensor, "b t z"],
    *,
    temperature: float = 1.0,
) -> Int[Tensor, "b t"]:
    """Continue each prefix to the length of its noise, in recurrent mode.

    The prefix is read once in parallel; every further value is one `step`. On a CPU, a
    sequence comes out the same in a batch of any size.

    Args:
        model: In `eval()` mode; its parameters say where to compute.
        distribution: Of a value given the model's output.
        prefix: Known values; none of them (width 0) generates from nothing.
        noise: See `uniform_noise`; row i belongs to prefix i.
        temperature: See `ValueDistribution.sample`.

    Returns:
        Prefix and continuation together, [b, t].

    Raises:
        ValueError: The temperature is not above 0, or the prefix longer than the noise.
    """
    batch, length = noise.shape[:2]
    known = prefix.shape[1]
    if known > length:
        raise ValueError(f"A prefix of {known} values cannot be completed to {length}.")
    device = model.head.weight.device
    padded = -batch % _ROW_MULTIPLE if device.type == "cpu" else 0
    values = torch.zeros(batch + padded, length, dtype=torch.long, device=device)
    values[:batch, :known] = prefix.to(device)
    noise = torch.nn.functional.pad(noise, (0, 0, 0, 0, 0, padded)).to(device)

    if known < length:
        parameters, state = model.prefill(model.with_start(values[:, :known]))
        parameters = parameters[:, -1]
        for i in range(known, length):
            values[:, i] = distribution.sample(parameters, noise[:, i], temperature=temperature)
            if i + 1 < length:
                parameters, state = model.step(values[:, i], state)
    return values[:batch]


@torch.inference_mode()
def largest_step_difference(model: AutoregressiveTransformer, values: Tokens) -> float:
    """The largest difference from `forward`'s outputs: stepping from the empty state, and
    stepping on from a prefill of half the values."""
    tokens = model.with_start(values)[:, :-1]
    expected = model(tokens)
    half = tokens.shape[1] // 2
    largest = 0.0
    for known in (0, half):
        state = model.init_state(len(tokens))
        if known:
            outputs, state = model.prefill(tokens[:, :known], state)
            largest = max(largest, (outputs - expected[:, :known]).abs().max().item())
        for i in range(known, tokens.shape[1]):
            output, state = model.step(tokens[:, i], state)
            largest = max(largest, (output - expected[:, i]).abs().max().item())
    return largest
