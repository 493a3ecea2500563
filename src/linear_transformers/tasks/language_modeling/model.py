"""A trained model of texts, as one calls it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from linear_transformers.config.ranges import Count, Positive, Seed, Share, ranged
from linear_transformers.data.text import TextShape
from linear_transformers.models.dropout import check_eval
from linear_transformers.sampling import Stepper, stepper_of
from linear_transformers.tasks.base import Trained
from linear_transformers.tasks.generation import sampler_of
from linear_transformers.tasks.language_modeling.continuation import (
    Continuation,
    continued,
    whole,
)

READ = 1024  # tokens of a text at a time: activations of a long one take much memory


@dataclass(frozen=True, eq=False)
class LanguageModel(Trained):
    """A trained model of texts.

    What is drawn depends on the seed and on the number of the text alone, not on the batch.
    """

    @property
    def shape(self) -> TextShape:
        """How texts become tokens."""
        return self.task.shape

    def tokens(self, text: str) -> Int[Tensor, " t"]:
        """Return the tokens of a text.

        Raises:
            ValueError: It is no text, or has a character that the tokenizer never saw.
        """
        if not isinstance(text, str):
            raise ValueError(f"{text!r} was given; a text is a str.")
        known = self.shape.tokenizer.encode_known(text, "the prompt")
        return torch.tensor(known, dtype=torch.long)

    @ranged
    def continuations(
        self,
        prompt: str = "",
        *,
        n: Count = 1,
        seed: Seed = 0,
        temperature: Positive = 1.0,
        top_k: Count | None = None,
        top_p: Share | None = None,
        end: bool = True,
        stop: str | Sequence[str] = (),
        stepper: str | Stepper = "auto",
    ) -> Iterator[tuple[list[str], list[Continuation]]]:
        """Return an iterator over what each next token adds to n texts: see `continued`.

        Args:
            prompt: What the texts begin with; it is in none of them.
            n: The number of texts.
            seed: The seed of all drawing.
            temperature: See `Categorical.sample`.
            top_k: See `Categorical.sample`.
            top_p: See `Categorical.sample`.
            end: Whether the model may end a text.
            stop: The string, or strings, at which a text ends.
            stepper: See `stepper_of`; or a stepper of this model.

        Raises:
            ValueError: An option does not fit the model, or it has no positions left.
        """
        task = self.task
        if isinstance(stepper, str):
            stepper = stepper_of(task.model, name=stepper)
        draw = sampler_of(task.distribution, temperature=temperature, top_k=top_k, top_p=top_p)
        stops = [stop] if isinstance(stop, str) else stop
        options = {"sample": draw, "n": n, "seed": seed, "end": end, "stop": stops}
        tokens, tokenizer = self.tokens(prompt), self.shape.tokenizer
        return continued(stepper, task.distribution, tokenizer, tokens, **options)

    def check_length(self, read: int, length: int | None) -> None:
        """Refuse more tokens than the model has positions for, before any is drawn.

        Args:
            read: The number of tokens of the prompt.
            length: The greatest number of tokens to draw; None is no bound.

        Raises:
            ValueError: The model's positions end before.
        """
        most, noun = self.task.model.stack.positions.max_length, self.shape.tokenizer.noun
        if most is not None and (length is None or read + length >= most):
            left = most - 1 - read
            fits = f"length={left}" if left > 0 else f"a prompt of {most - 2} {noun}"
            raise ValueError(
                f"A prompt of {read} {noun} and length={length} were asked for; the model has "
                f"positions for {most}, its start among them. Give {fits} or less."
            )

    @ranged
    def generate(
        self, prompt: str = "", *, length: Count = 500, n: Count = 1, **options: Any
    ) -> list[str]:
        """Return n texts that go on with a prompt, which is in none of them.

        Args:
            prompt: The prompt.
            length: The greatest number of tokens of each.
            n: The number of texts.
            options: See `continuations`.

        Raises:
            ValueError: See `continuations` and `check_length`.
        """
        self.check_length(len(self.tokens(prompt)), length)
        return whole(self.continuations(prompt, n=n, **options), length)

    def test_segments(self, count: int) -> Int[Tensor, "count t"]:
        """Return segments of the test texts of its data.

        Raises:
            ValueError: The data are missing, or have too few.
        """
        tokens = self.data().documents("test").tokens
        size = self.shape.segment
        if (found := len(tokens) // size) < count:
            raise ValueError(f"The test texts have {found} segments; a check takes {count}.")
        return torch.from_numpy(tokens[: count * size].astype("int64")).view(count, size)

    @torch.inference_mode()
    def nats(self, values: Int[Tensor, " t"]) -> Float[Tensor, " t"]:
        """Return the nats of each token of a text, given all before it, on the CPU.

        Args:
            values: The tokens, from the first on. They are read a part at a time.

        Raises:
            ValueError: The model is in `train()` mode.
        """
        check_eval(self.task.model)
        model, parts, state = self.task.model, [], None
        whole = values.unsqueeze(0).to(model.device)
        tokens = model.with_start(whole)[:, :-1]
        for part, read in zip(whole.split(READ, dim=1), tokens.split(READ, dim=1), strict=True):
            parameters, state = model.prefill(read, state)
            parts.append(-self.task.distribution.log_prob(parameters, part)[0].cpu())
        return torch.cat(parts)

    def bits_per_byte(self, text: str) -> float:
        """Return the bits per byte of a text, which is read as a whole, its end not included.

        Raises:
            ValueError: It is empty, or has a character that the tokenizer never saw.
        """
        if not text:
            raise ValueError("An empty text has no bits per byte.")
        nats = self.nats(self.tokens(text)).double().sum().item()
        return nats / math.log(2) / len(text.encode())
