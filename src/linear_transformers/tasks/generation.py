"""A trained model of sequences, as one calls it: read values, ask what comes next, go on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from linear_transformers.config.ranges import Count, Seed, Share, ranged
from linear_transformers.distributions import Categorical, ValueDistribution
from linear_transformers.distributions.base import check_temperature
from linear_transformers.models.dropout import check_eval
from linear_transformers.sampling import (
    Prefilled,
    Prompts,
    RecurrentStepper,
    Sampler,
    Stepper,
    complete,
    complete_in_batches,
    largest_step_difference,
    log_probabilities,
    stepper_of,
    uniform_noise,
)
from linear_transformers.tasks.base import Trained

# float32 rounding through a deep stack; a wrong recurrence is off by far more.
STEP_TOLERANCE = 1e-3


class Drawing(TypedDict, total=False):
    """How values are drawn: any of these options.

    Attributes:
        seed: The seed of all drawing; 0 if it is not given.
        temperature: See `ValueDistribution.sample`.
        top_k: See `sampler_of`.
        top_p: See `sampler_of`.
        stepper: See `stepper_of`.
        batch: The largest number of sequences side by side; 64 if it is not given.
    """

    seed: int
    temperature: float
    top_k: int | None
    top_p: float | None
    stepper: str
    batch: int


@dataclass(frozen=True, eq=False)
class SequenceModel(Trained):
    """A trained model of sequences of values, each given those before it."""

    @property
    def shape(self) -> Any:
        """The shape of the sequences."""
        return self.task.shape

    def log_likelihood(self, values: Integer[Tensor, "b t"]) -> Float[Tensor, " b"]:
        """Return the log-likelihood of sequences, in nats, on the CPU.

        Args:
            values: The sequences, from their first value on.

        Raises:
            ValueError: They are no integers [b, t], or a value or length is out of range.
        """
        values = torch.as_tensor(values)
        _check(values, self.shape, "batch", "time")
        task = self.task
        return log_probabilities(task.model, task.distribution, values.long()).sum(1)

    def prefix(self, values: Sequence[int] | Tensor = ()) -> "Prefix":
        """Return the state after some values of one sequence.

        Args:
            values: The values [t], from the first on; none is the empty prefix.

        Raises:
            ValueError: They are no integers [t], or a value or the length is out of range.
        """
        values = torch.as_tensor(values)
        values = values if values.numel() else values.long()  # an empty list is of floats
        _check(values, self.shape, "time", following=1)
        return Prefix.of(self, values.long())

    @ranged
    def _completed(
        self,
        prompts: Prompts,
        *,
        seed: Seed = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stepper: str = "auto",
        batch: Count = 64,
    ) -> Tensor:
        """Return completed sequences [b n, t]. The options are those of `Drawing`."""
        task = self.task
        parts = complete_in_batches(
            stepper_of(task.model, name=stepper),
            task.distribution,
            prompts,
            sample=sampler_of(task.distribution, temperature=temperature, top_k=top_k, top_p=top_p),
            batch=batch,
            seed=seed,
        )
        return torch.cat([part.values for part in parts])


@dataclass(frozen=True, eq=False)
class Prefix:
    """One sequence as far as it was read. A prefix is a value: `read` makes another one.

    Attributes:
        model: The model that read it.
        values: The values that were read, [t].
        parameters: The parameters of the next value's distribution.
        state: The state of the model.
    """

    model: SequenceModel
    values: Int[Tensor, " t"]
    parameters: Float[Tensor, "1 p"] = field(repr=False)
    state: Any = field(repr=False)

    @property
    def state_bytes(self) -> int:
        """The size of the state, in bytes."""
        return self.model.task.model.stack.state_bytes(self.state.position)

    @classmethod
    @torch.inference_mode()
    def of(cls, model: SequenceModel, values: Int[Tensor, " t"]) -> "Prefix":
        """Return the prefix of some values, which are read in parallel.

        Raises:
            ValueError: The model is in `train()` mode.
        """
        network = model.task.model
        check_eval(network)
        tokens = network.with_start(values.unsqueeze(0).to(network.device))
        parameters, state = network.prefill(tokens)
        return cls(model, values, parameters[:, -1], state)

    @property
    @torch.inference_mode()
    def probabilities(self) -> Float[Tensor, " v"]:
        """The probability of each value that may come next."""
        distribution: ValueDistribution = self.model.task.distribution
        values = torch.arange(distribution.num_values, device=self.parameters.device)
        parameters = self.parameters.expand(len(values), -1)
        return distribution.log_prob(parameters, values).exp().cpu()

    @torch.inference_mode()
    def read(self, value: int | np.integer | Integer[Tensor, "*one"]) -> "Prefix":
        """Return the prefix that one more value makes, by one recurrent step.

        Raises:
            ValueError: The value is no integer or out of range, or the sequence is full.
        """
        given = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
        if given.size != 1 or given.dtype.kind not in "iu":
            raise ValueError(f"{value!r} was given; a step reads one integer.")
        values = torch.cat([self.values, torch.tensor([given.item()])])
        _check(values, self.model.shape, "time", following=1)
        values = values.long()
        token = values[-1:].to(self.parameters.device)
        parameters, state = self.model.task.model.step(token, self.state)
        return Prefix(self.model, values, parameters, state)

    @torch.inference_mode()
    @ranged
    def complete(
        self,
        n: Count = 1,
        *,
        seed: Seed = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> Int[Tensor, "n length"]:
        """Return n sequences that begin with the prefix: forks of its state.

        Args:
            n: The number of sequences.
            seed: The seed of all drawing.
            temperature: See `ValueDistribution.sample`.
            top_k: See `sampler_of`.
            top_p: See `sampler_of`.

        Raises:
            ValueError: A number is out of range; see `sampler_of`.
        """
        task, length, read = self.model.task, self.model.shape.length, len(self.values)
        device = task.model.device
        values = torch.zeros(1, length, dtype=torch.long, device=device)
        values[0, :read] = self.values
        hidden = torch.arange(length, device=device).unsqueeze(0) >= read
        start = Prefilled(values, hidden, range(read, length), self.parameters, self.state)
        sample = sampler_of(task.distribution, temperature=temperature, top_k=top_k, top_p=top_p)
        noise = uniform_noise(task.distribution, seed=seed, indices=range(n), length=length)
        rows = torch.zeros(n, dtype=torch.long, device=device)
        return complete(RecurrentStepper(task.model), sample, start, rows, noise).cpu()


def checked_steps(stepper: Stepper, values: Int[Tensor, "b t"]) -> float:
    """Print and return the largest difference of a stepper's outputs from those of `forward`.

    Args:
        stepper: The stepper, of a model whose weights are not rounded.
        values: The sequences that both read.

    Raises:
        ValueError: It is more than rounding can make.
    """
    difference = largest_step_difference(stepper, values)
    print(f"check    step against forward: largest difference {difference:.2e}")
    if not difference <= STEP_TOLERANCE:  # NaN, too
        raise ValueError(
            f"Step and forward differ by {difference:.2e}, more than {STEP_TOLERANCE:g}. "
            "This checkpoint must not be sampled from in recurrent mode."
        )
    return difference


@ranged
def sampler_of(
    distribution: ValueDistribution,
    *,
    temperature: float = 1.0,
    top_k: Count | None = None,
    top_p: Share | None = None,
) -> Sampler:
    """Return how a value is drawn.

    Args:
        distribution: The distribution of a value.
        temperature: See `ValueDistribution.sample`.
        top_k: The number of most likely values to draw from; None is all.
        top_p: The least probability of the most likely values to draw from; None is all.

    Raises:
        ValueError: A number is out of range; or the distribution is not categorical, and `top_k`
            or `top_p` is given.
    """
    check_temperature(temperature)  # before anything is made
    options: dict[str, Any] = {"temperature": temperature}
    for name, value in (("top_k", top_k), ("top_p", top_p)):
        if value is None:
            continue
        if not isinstance(distribution, Categorical):
            raise ValueError(
                f"{name}={value} needs one probability for each value, a categorical head; "
                f"the checkpoint has a {type(distribution).__name__}. Use temperature."
            )
        options[name] = value
    return partial(distribution.sample, **options)


def _check(values: Tensor, shape: Any, *axes: str, following: int = 0) -> None:
    integers = not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    if not (integers and values.ndim == len(axes) and all(values.shape[:-1])):
        raise ValueError(
            f"Values {list(values.shape)} of {values.dtype} were given; the model takes integers "
            f"[{', '.join(axes)}]."
        )
    if values.shape[-1] + following > shape.length:
        rest = f" with the {following} to follow" if following else ""
        raise ValueError(
            f"{values.shape[-1]} values were given; a sequence has at most {shape.length}{rest}."
        )
    if values.numel() == 0:
        return
    # As Python's integers: of 8 bits, 255 < 256 is false in torch, and uint16 has no min there.
    least, greatest = map(int, values.long().aminmax())
    if not 0 <= least <= greatest < shape.num_values:
        raise ValueError(
            f"Values from {least} to {greatest} were given; the model knows 0 to "
            f"{shape.num_values - 1}."
        )
