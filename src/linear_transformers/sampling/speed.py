"""What a step costs, at several places of a sequence, of several decoders side by side."""

import time
from collections.abc import Mapping
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from linear_transformers.distributions import ValueDistribution
from linear_transformers.sampling.autoregressive import Decoder, Looping
from linear_transformers.shapes import Tokens


@torch.inference_mode()
def step_milliseconds(
    decoders: Mapping[str, Decoder],
    distribution: ValueDistribution,
    *,
    length: int,
    batch: int,
    positions: int = 8,
    steps: int = 8,
    rounds: int = 3,
    once: frozenset[str] = frozenset(),
) -> dict[str, float]:
    """Mean milliseconds over a sequence to sample one value of each image and to read it.

    Each decoder in turn at each of some evenly spaced positions, several times over; the
    median of a position is averaged over positions.

    Args:
        decoders: By name; all of one device.
        distribution: What their output are the parameters of.
        length: Values a sequence, at least 4.
        batch: Sequences side by side.
        positions: Where in the sequence steps are measured.
        steps: Consecutive steps a measurement. They do not go past the end of the sequence.
        rounds: How often each is measured. A decoder that does the whole loop is given it as
            often: each time it starts from a copy of the state.
        once: Names of decoders that take one step at each position, and no more: a step
            that costs a whole forward pass need not be repeated to be seen.
    """
    device = next(iter(decoders.values())).device
    medians: dict[str, list[float]] = {name: [] for name in decoders}
    # One step that is not counted, then `steps`: as far as that leads from the last position.
    steps = max(1, min(steps, length // (2 * positions) - 1))
    for position in (length * i // (2 * positions) for i in range(1, 2 * positions, 2)):
        position = min(position, length - 2 - steps)
        values = torch.randint(distribution.num_values, (1, position), device=device)
        noise = torch.rand(batch, length, distribution.noise_dim, device=device)
        read = {name: _forked(x, values, batch) for name, x in decoders.items()}
        times: dict[str, list[float]] = {name: [] for name in decoders}
        for turn in range(rounds):
            for name, decoder in decoders.items():
                if turn and name in once:
                    continue
                count = 1 if name in once else steps
                walk = _Walk(decoder, distribution, noise, *read[name], position)
                if name not in once:
                    walk.take(1)  # to fill the caches, or to be captured
                _synchronize(device)
                begin = time.perf_counter()
                walk.take(count)
                _synchronize(device)
                times[name].append(1000 * (time.perf_counter() - begin) / count)
        for name, found in times.items():
            medians[name].append(median(found))
    return {name: mean(found) for name, found in medians.items()}


class _Walk:
    """Steps of a sequence that was read up to a position."""

    def __init__(
        self,
        decoder: Decoder,
        distribution: ValueDistribution,
        noise: Tensor,
        parameters: Tensor,
        state: Any,
        position: int,
    ):
        self.decoder, self.sample = decoder, distribution.sample
        self.noise, self.parameters = noise, parameters
        self.state, self.position = state, position

    def take(self, count: int) -> None:
        """Sample so many values, and read them."""
        if isinstance(self.decoder, Looping):
            shape, device = self.noise.shape[:2], self.noise.device
            values = torch.zeros(shape, dtype=torch.long, device=device)
            self.decoder.fill(
                values, self.parameters, self.state, sample=self.sample, noise=self.noise,
                known=torch.zeros(shape[1], dtype=torch.bool, device=device),
                places=range(self.position, self.position + count + 1), on_value=_nothing,
            )  # fmt: skip
            return
        for i in range(self.position, self.position + count):
            value = self.sample(self.parameters, self.noise[:, i])
            self.parameters, self.state = self.decoder.step(value, self.state)
        self.position += count


def _nothing() -> None: ...


def _forked(decoder: Decoder, values: Tokens, batch: int) -> tuple[Tensor, Any]:
    """One sequence read and forked: reading all of a large batch would take far more memory
    than a step does, and what was read does not change what a step costs."""
    outputs, state = decoder.prefill(decoder.with_start(values))
    rows = torch.zeros(batch, dtype=torch.long, device=values.device)
    return outputs[rows, -1], decoder.select(state, rows)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
