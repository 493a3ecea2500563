"""Generate values one at a time, at constant cost per value where attention is linear."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.shapes import Known, Rows, Tokens, TokensOne

# Parameters [b, p] and noise [b, z] to values [b]: a distribution's `sample`, its options given.
Sampler = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class Decoder(Protocol):
    """What generates: a model in recurrent mode; the same compiled, `CompiledDecoder`; or
    `Recomputed`, which has no state.

    Attributes:
        row_multiple: In multiples of so many sequences, one does not know what is beside it.

    The state that `step` was given must not be used again: a decoder may change it in place.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def row_multiple(self) -> int: ...

    def with_start(self, values: Tokens) -> Tokens: ...

    def prefill(self, tokens: Tokens, state: Any = None) -> tuple[Float[Tensor, "b t p"], Any]: ...

    def step(self, token: TokensOne, state: Any) -> tuple[Float[Tensor, "b p"], Any]: ...

    def select(self, state: Any, rows: Rows) -> Any: ...


@runtime_checkable
class Looping(Decoder, Protocol):
    """A decoder that does the whole loop of `complete`, and not a step of it."""

    def fill(
        self,
        values: Int[Tensor, "r t"],
        parameters: Float[Tensor, "r p"],
        state: Any,
        *,
        sample: Sampler,
        noise: Float[Tensor, "r t z"],
        known: Bool[Tensor, " t"],
        places: range,
        on_value: Callable[[], None],
    ) -> Int[Tensor, "r t"]:
        """The values, with those at `places` drawn, where they are not known.

        Args:
            values: Given ones, and room.
            parameters: Of the value at the first of the places.
            state: Of what comes before it.
            sample: See `Sampler`.
            noise: See `uniform_noise`.
            known: Which values are given.
            places: From the first that is drawn to the last.
            on_value: Called for each of them.
        """
        ...


class Recomputed:
    """The paper's slow baseline: nothing is remembered, each step runs `forward` on everything.

    The state is the tokens so far. A step costs what a whole sequence costs in training.
    """

    def __init__(self, model: AutoregressiveTransformer):
        self.model = model
        self.device = model.device
        self.row_multiple = model.row_multiple
        self.with_start = model.with_start

    def prefill(
        self, tokens: Tokens, state: Int[Tensor, "b before"] | None = None
    ) -> tuple[Float[Tensor, "b t p"], Int[Tensor, "b after"]]:
        read = tokens if state is None else torch.cat([state, tokens], dim=1)
        return self.model(read)[:, read.shape[1] - tokens.shape[1] :], read

    def step(
        self, token: TokensOne, state: Int[Tensor, "b before"]
    ) -> tuple[Float[Tensor, "b p"], Int[Tensor, "b after"]]:
        parameters, state = self.prefill(token.unsqueeze(1), state)
        return parameters[:, -1], state

    def select(self, state: Tokens, rows: Rows) -> Int[Tensor, "r t"]:
        return state[rows]


class Prompt(NamedTuple):
    """Given values, read up to the first hidden one: a state to continue any number of times."""

    values: Int[Tensor, "b t"]
    known: Known
    parameters: Float[Tensor, "b p"]
    state: Any


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
def read(decoder: Decoder, values: Int[Tensor, "b t"], known: Bool[Tensor, " flags"]) -> Prompt:
    """Read given values in parallel, up to the first that is hidden.

    Args:
        decoder: A model in `eval()` mode.
        values: Whole sequences; what they hold where `known` is false is not looked at.
        known: Which positions are given, the same in every sequence.

    Raises:
        ValueError: There are not as many flags as positions.
    """
    if known.shape[0] != values.shape[1]:
        raise ValueError(
            f"{known.shape[0]} flags say what is known of {values.shape[1]} values. Give one each."
        )
    padded = padded_rows(values.to(decoder.device), decoder.row_multiple)
    hidden = (~known).nonzero()
    prefix = padded[:, : int(hidden[0]) if len(hidden) else values.shape[1] - 1]
    parameters, state = decoder.prefill(decoder.with_start(prefix))
    return Prompt(padded, known.cpu(), parameters[:, -1], state)


@torch.inference_mode()
def complete(
    decoder: Decoder,
    sample: Sampler,
    prompt: Prompt,
    rows: Rows,
    noise: Float[Tensor, "r t z"],
    *,
    on_value: Callable[[], None] = lambda: None,
) -> Int[Tensor, "r t"]:
    """Continue prompts to whole sequences in recurrent mode, one `step` a value.

    A hidden value is drawn given all values before it, drawn or given. Given values after the
    first hidden one are kept, but a value cannot know what is given after it. On a CPU, a
    sequence comes out the same in a batch of any size.

    Args:
        decoder: What read the prompt.
        sample: See `Sampler`.
        prompt: See `read`. It can be continued again.
        rows: Which sequence of the prompt each result continues; one named twice is forked.
        noise: See `uniform_noise`; one row for each of `rows`.
        on_value: Called after each position.

    Returns:
        Given and drawn values together.
    """
    count, device = len(rows), decoder.device
    rows = padded_rows(rows.to(device), decoder.row_multiple)
    noise = padded_rows(noise.to(device), decoder.row_multiple)
    values, parameters = prompt.values[rows], prompt.parameters[rows]
    state = decoder.select(prompt.state, rows)
    known = prompt.known.tolist()
    hidden = [i for i, given in enumerate(known) if not given]
    places = range(hidden[0], hidden[-1] + 1) if hidden else range(0)
    if isinstance(decoder, Looping):
        values = decoder.fill(
            values, parameters, state, sample=sample, noise=noise, known=prompt.known.to(device),
            places=places, on_value=on_value,
        )  # fmt: skip
        return values[:count]
    for i in places:
        if not known[i]:
            values[:, i] = sample(parameters, noise[:, i])
        if i < hidden[-1]:
            parameters, state = decoder.step(values[:, i], state)
        on_value()
    return values[:count]


@torch.inference_mode()
def largest_step_difference(
    model: AutoregressiveTransformer, values: Tokens, decoder: Decoder | None = None
) -> float:
    """The largest difference from `forward`'s outputs: stepping from the empty state, and
    stepping on from a prefill of half the values.

    Args:
        model: In `eval()` mode.
        values: Whole sequences.
        decoder: What steps; None is the model.
    """
    decoder = model if decoder is None else decoder
    tokens = model.with_start(values)[:, :-1]
    expected = model(tokens)
    half = tokens.shape[1] // 2
    largest = 0.0
    for known in (0, half):
        state = model.init_state(len(tokens))
        if known:
            outputs, state = decoder.prefill(tokens[:, :known], state)
            largest = max(largest, (outputs - expected[:, :known]).abs().max().item())
        for i in range(known, tokens.shape[1]):
            output, state = decoder.step(tokens[:, i], state)
            largest = max(largest, (output - expected[:, i]).abs().max().item())
    return largest


def padded_rows(x: Tensor, multiple: int) -> Tensor:
    """More rows, to a multiple of so many; they are zero, and nobody looks at them."""
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, -len(x) % multiple))
