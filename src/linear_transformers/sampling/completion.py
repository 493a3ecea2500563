"""Complete sequences one value at a time: one batch, or many with forks of one prefill."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linear_transformers import stopping
from linear_transformers.distributions import ValueDistribution
from linear_transformers.sampling.stepper import (
    Prefilled,
    Sampler,
    Stepper,
    check_finite,
    padded_rows,
)
from linear_transformers.shapes import Known, Rows

PREFILLED = 4096  # values of a sequence at a time: activations of a long one take much memory
DRAWN = 256  # values whose noise is drawn together, where there is no end


@dataclass(frozen=True)
class Prompts:
    """Sequences to complete, each of them n times.

    Attributes:
        values: The sequences; values where `known` is false are ignored.
        known: Which values are given, the same in every sequence.
        n: The number of completions of each. Completion j of sequence i has number i n + j.
    """

    values: Int[Tensor, "b t"]
    known: Known
    n: int = 1

    @classmethod
    def nothing(cls, length: int, n: int) -> "Prompts":
        """Return the prompts to generate n sequences: one, with all values hidden."""
        values = torch.zeros(1, length, dtype=torch.long)
        return cls(values, torch.zeros(length, dtype=torch.bool), n)

    @property
    def digest(self) -> str:
        """A hash of the given values, by which prompts are compared."""
        parts = (self.values.where(self.known, 0), self.known)
        return sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16]

    @property
    def count(self) -> int:
        """The number of completions in all."""
        return len(self.values) * self.n

    @property
    def steps(self) -> int:
        """The number of values from the first hidden one to the last."""
        hidden = (~self.known).nonzero()
        return int(hidden[-1] - hidden[0]) + 1 if len(hidden) else 0


@dataclass(frozen=True)
class Completed:
    """Some completed sequences.

    Attributes:
        numbers: The completions' numbers: see `Prompts`.
        values: The sequences, given and drawn values together, on the CPU.
        seconds: The time they took, with their share of the prefill.
    """

    numbers: list[int]
    values: Int[Tensor, "r t"]
    seconds: float


def complete_in_batches(
    stepper: Stepper,
    distribution: ValueDistribution,
    prompts: Prompts,
    *,
    sample: Sampler | None = None,
    batch: int,
    seed: int,
    done: Collection[int] = (),
    on_value: Callable[[int], None] = lambda count: None,
) -> Iterator[Completed]:
    """Complete prompts batch by batch, and yield each batch as it is finished.

    The given values are prefilled once, however many completions a prompt gets: they continue
    forks of one state.

    Args:
        distribution: The distribution of a value.
        prompts: The prompts.
        sample: Draws a value; None is `distribution.sample`.
        batch: The largest number of sequences side by side.
        seed: The seed of all draws; a completion depends on it and on its own number only.
        done: The numbers of completions to leave out.
        on_value: Called after each step, with the number of values that it made.
    """
    sample = distribution.sample if sample is None else sample
    length = prompts.values.shape[1]
    together = max(1, batch // prompts.n)  # prompts that are prefilled side by side
    for first in range(0, len(prompts.values), together):
        group = prompts.values[first : first + together]
        numbers = range(first * prompts.n, (first + len(group)) * prompts.n)
        missing = [number for number in numbers if number not in done]
        if not missing:
            continue
        begin = time.perf_counter()
        start = prefill(stepper, group, prompts.known)
        prefilling = time.perf_counter() - begin
        for i in range(0, len(missing), batch):
            part = missing[i : i + batch]
            begin = time.perf_counter()
            values = complete(
                stepper,
                sample,
                start,
                torch.tensor([number // prompts.n - first for number in part]),
                uniform_noise(distribution, seed=seed, indices=part, length=length),
                on_value=lambda part=part: on_value(len(part)),
            ).cpu()  # waits for the device, so that the time is complete
            share = prefilling * len(part) / len(missing)
            yield Completed(part, values, time.perf_counter() - begin + share)


@torch.inference_mode()
def prefill(
    stepper: Stepper, values: Int[Tensor, "b t"], known: Bool[Tensor, "*flags"]
) -> Prefilled:
    """Read given values in parallel, up to the first that is hidden in any sequence.

    Args:
        values: Whole sequences; values where `known` is false are ignored.
        known: Which values are given: [t], or [b, t] where sequences differ.

    Raises:
        ValueError: There are not as many flags as values.
    """
    if known.shape[-1] != values.shape[1]:
        raise ValueError(
            f"known has {known.shape[-1]} flags for {values.shape[1]} values. Give one for each."
        )
    values, hidden = (
        padded_rows(x.to(stepper.device), stepper.row_multiple)
        for x in (values, ~known.expand(values.shape))
    )
    found = hidden.any(0).nonzero().flatten().tolist()
    places = range(found[0], found[-1] + 1) if found else range(values.shape[1] - 1, 0)
    tokens = stepper.model.with_start(values[:, : places.start])
    parameters, state = stepper.prefill(tokens)
    # Cloned: a view would keep the parameters of all positions in memory.
    return Prefilled(values, hidden, places, parameters[:, -1].clone(), state)


@torch.inference_mode()
def complete(
    stepper: Stepper,
    sample: Sampler,
    start: Prefilled,
    rows: Rows,
    noise: Float[Tensor, "r t z"],
    *,
    on_value: Callable[[], None] = lambda: None,
) -> Int[Tensor, "r t"]:
    """Draw the hidden values of prefilled sequences, one step per value.

    A hidden value is drawn given all values before it, drawn or given. Given values after the
    first hidden one are kept, but no value depends on what is given after it. On a CPU, a
    sequence comes out the same in a batch of any size: see `row_multiple` of the model.

    Args:
        stepper: The stepper that prefilled the sequences.
        sample: Draws a value.
        start: The prefilled sequences, which can be completed again.
        rows: The sequence that each result continues; one that is named twice is forked.
        noise: The noise of each value, one row for each of `rows`. See `uniform_noise`.
        on_value: Called after each position.

    Returns:
        Given and drawn values together.

    Raises:
        ValueError: The noise is that of others, or the model's outputs are not finite.
        Stopped: A signal came.
    """
    if noise.shape[:2] != (wanted := (len(rows), start.values.shape[1])):
        raise ValueError(
            f"Noise of {list(noise.shape[:2])} sequences and values was given; these are "
            f"{list(wanted)}. Give one row for each of the rows to complete."
        )
    if not start.places:
        return start.values[rows]
    count, multiple = len(rows), stepper.row_multiple
    rows, noise = (padded_rows(x.to(stepper.device), multiple) for x in (rows, noise))
    loop = stepper.loop(stepper.fork(start, rows), sample, noise)
    for _ in start.places[:-1]:
        stopping.check()
        loop.turn()
        on_value()
    loop.draw()  # nothing is read after the last
    on_value()
    check_finite(loop.parameters[:count])  # a state that overflows stays so
    return loop.values[:count].clone()


def uniform_noise(
    distribution: ValueDistribution, *, seed: int, indices: Sequence[int], length: int
) -> Float[Tensor, "b t z"]:
    """Return the noise of whole sequences: each depends on the seed and its own index only.

    Args:
        distribution: The distribution of a value, which says how many numbers one takes.
        seed: The seed.
        indices: The indices of the sequences, one row each.
        length: The number of values of a sequence.
    """
    shape = (length, distribution.noise_dim)
    # numpy hashes the pair; torch's CPU generator would look at 32 bits of one number only.
    rows = [np.random.default_rng((seed, index)).random(shape, np.float32) for index in indices]
    return torch.from_numpy(np.stack(rows))


@torch.inference_mode()
def generate(
    stepper: Stepper,
    distribution: ValueDistribution,
    values: Int[Tensor, " t"],
    *,
    sample: Sampler,
    n: int,
    seed: int,
) -> Iterator[Int[Tensor, " n"]]:
    """Yield the values that follow a sequence, in n ways side by side, without end.

    The sequence is prefilled once, a part at a time, and its state is forked.

    Args:
        stepper: The stepper.
        distribution: The distribution of a value.
        values: The sequence, from its first value on; it may be empty.
        sample: Draws a value.
        n: The number of ways.
        seed: The seed of all draws; what follows depends on it and on the way's own number only.

    Yields:
        The next value of each way, on the CPU.

    Raises:
        ValueError: The model has no positions left, and all values that have one are drawn; or
            its outputs are not finite.
    """
    positions = stepper.model.stack.positions
    multiple = stepper.row_multiple
    tokens = stepper.model.with_start(values.unsqueeze(0).to(stepper.device))
    first, *others = padded_rows(tokens, stepper.model.row_multiple).split(PREFILLED, dim=1)
    parameters, state = stepper.prefill(first)
    for part in others:
        parameters, state = stepper.prefill(part, state)
    rows = padded_rows(torch.zeros(n, dtype=torch.long, device=stepper.device), multiple)
    parameters, state = parameters[rows, -1], stepper.select(state, rows)
    hidden = torch.ones(len(rows), DRAWN, dtype=torch.bool, device=stepper.device)
    sources = [np.random.default_rng((seed, number)) for number in range(n)]
    shape = (DRAWN, distribution.noise_dim)
    count = tokens.shape[1]
    while True:
        check_finite(parameters)
        noise = np.stack([source.random(shape, np.float32) for source in sources])
        noise = padded_rows(torch.from_numpy(noise).to(stepper.device), multiple)
        start = Prefilled(hidden.long(), hidden, range(DRAWN), parameters, state)
        loop = stepper.loop(start, sample, noise)
        for place in start.places:
            if count == positions.max_length:  # none to read the next value at
                yield loop.draw()[:n].cpu()
                positions.check(count + 1)
            loop.turn()
            count += 1
            yield loop.values[:n, place].cpu()
        parameters, state = loop.reached()


def greedy(logits: Float[Tensor, "b v"], noise: Float[Tensor, "b z"]) -> Int[Tensor, " b"]:
    """Return the most likely values: a `Sampler` for categorical distributions."""
    return logits.argmax(-1)
