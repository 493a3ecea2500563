"""Many images out of one model: batches, forks, and what they cost."""

import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from linear_transformers.data import Images, ImageShape
from linear_transformers.data.masks import Mask
from linear_transformers.data.sequences import to_sequences
from linear_transformers.distributions import ValueDistribution
from linear_transformers.models import AutoregressiveTransformer
from linear_transformers.sampling import Decoder, Sampler, complete, read, uniform_noise


@dataclass(frozen=True)
class Prompts:
    """What is given: some images, and which of their pixels; every one is completed n times.

    Attributes:
        images: [k, h, w, channels]. What a hidden pixel holds is not looked at.
        mask: Which pixels are given.
        n: Completions of each image. Completion j of image i has number i n + j.
    """

    images: Images
    mask: Mask
    n: int = 1

    @classmethod
    def nothing(cls, shape: ImageShape, n: int) -> "Prompts":
        """To generate n images: n completions of one that is hidden altogether."""
        size = (shape.height, shape.width)
        return cls(
            torch.zeros(1, *size, shape.channels, dtype=torch.uint8).numpy(),
            torch.zeros(size, dtype=torch.bool).numpy(),
            n,
        )

    @property
    def count(self) -> int:
        """Completions in all."""
        return len(self.images) * self.n

    @property
    def known(self) -> Tensor:
        """Whether each value of a sequence is given, [t]."""
        channels = self.images.shape[-1]
        return torch.from_numpy(self.mask).flatten().repeat_interleave(channels)

    @property
    def steps(self) -> int:
        """Values from the first hidden one to the last: what is left to do after reading."""
        hidden = (~self.known).nonzero().flatten()
        return int(hidden[-1] - hidden[0]) + 1 if len(hidden) else 0


@dataclass(frozen=True)
class Drawn:
    """Some finished sequences.

    Attributes:
        numbers: Of the completions.
        values: Whole sequences [r, t], on the CPU.
        seconds: That they took, with their share of reading what was given.
    """

    numbers: list[int]
    values: Tensor
    seconds: float


def draw(
    decoder: Decoder,
    distribution: ValueDistribution,
    prompts: Prompts,
    *,
    sample: Sampler | None = None,
    batch: int,
    seed: int,
    done: Collection[int] = (),
    on_value: Callable[[int], None] = lambda count: None,
) -> Iterator[Drawn]:
    """Complete images, at most `batch` side by side, each batch as it is finished.

    What is given of an image is read once, however many completions it gets: they continue
    forks of one state.

    Args:
        decoder: Generates.
        distribution: What its output are the parameters of.
        prompts: What is given.
        sample: How to draw a value; None is `distribution.sample`.
        batch: The most sequences side by side.
        seed: Of the job; a completion depends on it and on its own number only.
        done: Numbers that are there already.
        on_value: Called after each step with the number of values it made.
    """
    sequences, known = to_sequences(prompts.images).long(), prompts.known
    sample = distribution.sample if sample is None else sample
    together = max(1, batch // prompts.n)  # images that are read at once
    for first in range(0, len(sequences), together):
        group = sequences[first : first + together]
        numbers = range(first * prompts.n, (first + len(group)) * prompts.n)
        missing = [number for number in numbers if number not in done]
        if not missing:
            continue
        start = time.perf_counter()
        prompt = read(decoder, group, known)
        reading = time.perf_counter() - start
        for i in range(0, len(missing), batch):
            part = missing[i : i + batch]
            start = time.perf_counter()
            values = complete(
                decoder,
                sample,
                prompt,
                torch.tensor([number // prompts.n - first for number in part]),
                uniform_noise(distribution, seed=seed, indices=part, length=group.shape[1]),
                on_value=lambda part=part: on_value(len(part)),
            ).cpu()  # waits for the device: the time is honest
            share = reading * len(part) / len(missing)
            yield Drawn(part, values, time.perf_counter() - start + share)


@torch.inference_mode()
def bits_per_dim(
    model: AutoregressiveTransformer, distribution: ValueDistribution, values: Tensor, known: Tensor
) -> tuple[list[float], list[float]]:
    """What the model thinks of sequences: bits a value, over all values and over hidden ones.

    Args:
        model: In `eval()` mode.
        distribution: What its output are the parameters of.
        values: Whole sequences [b, t].
        known: Which values were given [t]; where all were, the second list holds NaN.
    """
    whole, hidden = [], []
    for sequence in values.to(model.device).split(4):  # activations of a few at a time
        parameters = model(model.with_start(sequence)[:, :-1])
        bits = -distribution.log_prob(parameters, sequence).cpu() / math.log(2)
        whole += bits.mean(1).tolist()
        hidden += bits[:, ~known].mean(1).tolist()
    return whole, hidden
