"""Loops over `step`: a trained transformer running as a recurrent network."""

from linear_transformers.sampling.autoregressive import (
    complete,
    largest_step_difference,
    uniform_noise,
)

__all__ = ["complete", "largest_step_difference", "uniform_noise"]
