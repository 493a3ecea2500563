"""Mixers: layers from vectors to vectors that mix positions, with projections of their own."""

from linear_transformers.mixers.base import Mixer, MixerFactory
from linear_transformers.mixers.cross import CrossFactory, MultiHeadCrossAttention
from linear_transformers.mixers.fast_weights import (
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    MultiScaleRetention,
)
from linear_transformers.mixers.lstm import LSTM
from linear_transformers.mixers.multi_head import MixerState, MultiHead, MultiHeadAttention

__all__ = [
    "LSTM",
    "CrossFactory",
    "DeltaNet",
    "GatedDeltaNet",
    "GatedLinearAttention",
    "KimiDeltaAttention",
    "Mixer",
    "MixerFactory",
    "MixerState",
    "MultiHead",
    "MultiHeadAttention",
    "MultiHeadCrossAttention",
    "MultiScaleRetention",
]
