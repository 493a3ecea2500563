"""Steppers run a trained autoregressive model one value at a time.

A model has several: its own step, the same compiled or captured, and `forward` on everything. They
compute one function; only speed and precision depend on which is chosen.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.models.dropout import check_eval
from linear_transformers.shapes import Rows, Tokens, TokensOne

# Parameters [b, p] and noise [b, z] to values [b]: a distribution's `sample`, its options given.
Sampler = Callable[[Tensor, Tensor], Tensor]


class Prefilled(NamedTuple):
    """Sequences whose given values were prefilled up to the first hidden one.

    Attributes:
        values: The sequences; values where `hidden` is true are ignored.
        hidden: Which values are to be drawn.
        places: The places from the first hidden value to the last. What comes before was read.
        parameters: The parameters of the next value's distribution.
        state: The stepper's state after the values that were read.
    """

    values: Int[Tensor, "b t"]
    hidden: Bool[Tensor, "b t"]
    places: range
    parameters: Float[Tensor, "b p"]
    state: Any


class Stepper(ABC):
    """A way to run a model one value at a time.

    A state that was given to `step` must not be used again: a stepper may change it in place.
    `select` copies.

    Args:
        model: The model, in `eval()` mode.
        precision: The precision that the model's weights are converted to, in place; None leaves
            them as they are.

    Raises:
        ValueError: The stepper cannot run this model: see `unavailable` and `check_eval`.

    Attributes:
        name: The name on the command line.
        precisions: The precisions that it can run a model in.
        description: The name and further details, for records.
        row_multiple: Batches are padded to a multiple of this, so that results do not depend on
            the rest of the batch.
    """

    name: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16", "float64")

    def __init__(self, model: AutoregressiveTransformer, precision: str | None = None):
        check_eval(model)
        if reason := self.unavailable(model, precision):
            raise ValueError(f"stepper={self.name} cannot run: {reason}. Use stepper=auto.")
        if precision is not None:
            self.convert(model, precision)
        self.model = model
        self.device = model.device
        self.row_multiple = model.row_multiple
        self.description = self.name

    @classmethod
    def unavailable(
        cls, model: AutoregressiveTransformer, precision: str | None = None
    ) -> str | None:
        """Return why the stepper cannot run a model in a precision, or None."""
        if precision is None or precision in cls.precisions:
            return None
        return f"it has no precision={precision}, only {list(cls.precisions)}"

    @staticmethod
    def convert(model: AutoregressiveTransformer, precision: str) -> None:
        """Convert a model's weights to a precision, in place."""
        dtype = getattr(torch, precision)
        model.to(dtype)
        if dtype.itemsize < 4:
            # Means in bfloat16 are coarser than the gap between 256 levels.
            model.stack.norm.float()
            model.head.float()

    def prefill(self, tokens: Tokens, state: Any = None) -> tuple[Float[Tensor, "b t p"], Any]:
        """Read several tokens of each sequence in parallel, after `state` if there is one."""
        return self.model.prefill(tokens, state)

    @abstractmethod
    def step(self, token: TokensOne, state: Any) -> tuple[Float[Tensor, "b p"], Any]:
        """Read one token of each sequence.

        Args:
            token: The tokens.
            state: The state before them, which must not be used again.

        Returns:
            The parameters of the value that follows each, and the state after them.
        """

    def select(self, state: Any, rows: Rows) -> Any:
        """Return a copy of the state of some sequences; a row that is named twice is forked."""
        return self.model.select(state, rows)

    def fork(self, start: Prefilled, rows: Rows) -> Prefilled:
        """Return a copy of some prefilled sequences; a row that is named twice is forked."""
        return Prefilled(
            start.values[rows], start.hidden[rows], start.places, start.parameters[rows],
            self.select(start.state, rows),
        )  # fmt: skip

    def loop(self, start: Prefilled, sample: Sampler, noise: Float[Tensor, "b t z"]) -> "Loop":
        """Return the loop that continues prefilled sequences.

        Args:
            start: The sequences. Their state must not be used again.
            sample: Draws a value.
            noise: The noise of each value. See `uniform_noise`.
        """
        return Loop(self.step, start, sample, noise)


class Loop:
    """The sampling loop. A turn draws one value of each sequence and reads it.

    Attributes:
        values: The sequences [b, t], given and drawn values. Values that are still hidden are
            undefined.
        parameters: The parameters [b, p] of the next value's distribution.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Any], tuple[Tensor, Any]],
        start: Prefilled,
        sample: Sampler,
        noise: Float[Tensor, "b t z"],
    ):
        self.step, self.sample, self.noise = step, sample, noise
        self.values, self.hidden = start.values.clone(), start.hidden
        self.parameters, self.state = start.parameters, start.state
        self.place = start.places.start
        self.all_hidden: list[bool] = start.hidden.all(0).tolist()
        self.any_hidden: list[bool] = start.hidden.any(0).tolist()

    def draw(self) -> TokensOne:
        """Draw the next value of each sequence, where it is hidden, and return it."""
        i = self.place
        if not self.any_hidden[i]:
            return self.values[:, i]
        value = self.sample(self.parameters, self.noise[:, i])
        if not self.all_hidden[i]:
            value = torch.where(self.hidden[:, i], value, self.values[:, i])
        self.values[:, i] = value
        return value

    def turn(self) -> None:
        """Draw the next value of each sequence, and read it."""
        self.parameters, self.state = self.step(self.draw(), self.state)
        self.place += 1

    def reached(self) -> tuple[Float[Tensor, "b p"], Any]:
        """Return the parameters of the next value's distribution, and the state before it, which
        the next turn must not use again."""
        return self.parameters, self.state


def check_finite(parameters: Tensor) -> None:
    """Refuse parameters of distributions that are not finite: a value drawn from them is 0.

    Raises:
        ValueError: They hold NaN or infinity.
    """
    if not parameters.isfinite().all():
        raise ValueError(
            "The model's outputs are not finite, so nothing can be drawn from them. In "
            "precision=float16 numbers above 65504 are infinite: use bfloat16 or float32."
        )


def padded_rows(x: Tensor, multiple: int) -> Tensor:
    """Return a batch padded with rows of zeros to a multiple of rows."""
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, -len(x) % multiple))
