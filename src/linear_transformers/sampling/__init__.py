"""Loops over `step`: a trained model as a recurrent network."""

from linear_transformers.sampling.autoregressive import (
    Decoder,
    Looping,
    Prompt,
    Recomputed,
    Sampler,
    complete,
    largest_step_difference,
    read,
    uniform_noise,
)
from linear_transformers.sampling.compiled import CompiledDecoder, round_weights
from linear_transformers.sampling.graphed import GraphedDecoder
from linear_transformers.sampling.speed import step_milliseconds

__all__ = [
    "CompiledDecoder",
    "Decoder",
    "GraphedDecoder",
    "Looping",
    "Prompt",
    "Recomputed",
    "Sampler",
    "complete",
    "largest_step_difference",
    "read",
    "round_weights",
    "step_milliseconds",
    "uniform_noise",
]
