"""Distributions over values 0 ... num_values - 1: `log_prob` and `sample`, nothing else."""

from linear_transformers.distributions.base import ValueDistribution
from linear_transformers.distributions.categorical import Categorical
from linear_transformers.distributions.logistic_mixture import LogisticMixture

__all__ = ["Categorical", "LogisticMixture", "ValueDistribution"]
