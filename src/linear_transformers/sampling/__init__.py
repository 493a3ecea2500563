"""Run a trained model one value at a time: steppers, and what is done with them."""

from linear_transformers.sampling.captured import CapturedStepper, FusedStepper
from linear_transformers.sampling.compiled import CompiledStepper
from linear_transformers.sampling.completion import (
    Completed,
    Prompts,
    complete,
    complete_in_batches,
    generate,
    greedy,
    prefill,
    uniform_noise,
)
from linear_transformers.sampling.decoding import Decoder, Hypothesis, beam_search, draw
from linear_transformers.sampling.evaluation import (
    bits_per_dim,
    largest_step_difference,
    log_probabilities,
)
from linear_transformers.sampling.recurrent import RecomputedStepper, RecurrentStepper
from linear_transformers.sampling.registry import PRECISIONS, STEPPERS, stepper_of
from linear_transformers.sampling.speed import launches_per_step, step_milliseconds
from linear_transformers.sampling.stepper import Loop, Prefilled, Sampler, Stepper

__all__ = [
    "PRECISIONS",
    "STEPPERS",
    "CapturedStepper",
    "CompiledStepper",
    "Completed",
    "Decoder",
    "FusedStepper",
    "Hypothesis",
    "Loop",
    "Prefilled",
    "Prompts",
    "RecomputedStepper",
    "RecurrentStepper",
    "Sampler",
    "Stepper",
    "beam_search",
    "bits_per_dim",
    "complete",
    "complete_in_batches",
    "draw",
    "generate",
    "greedy",
    "largest_step_difference",
    "launches_per_step",
    "log_probabilities",
    "prefill",
    "step_milliseconds",
    "stepper_of",
    "uniform_noise",
]
