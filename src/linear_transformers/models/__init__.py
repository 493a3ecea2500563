"""Stacks of blocks with embeddings and heads. Blocks, causal stacks and autoregressive models keep
the mixers' contract: `forward`, `init_state`, `step`, `prefill`."""

from linear_transformers.models.autoregressive import AutoregressiveTransformer
from linear_transformers.models.bilstm import BiLstm
from linear_transformers.models.block import Block
from linear_transformers.models.encoder_decoder import EncoderDecoder
from linear_transformers.models.speech import SpeechEncoder, StreamState
from linear_transformers.models.transformer import StackState, Transformer

__all__ = [
    "AutoregressiveTransformer",
    "BiLstm",
    "Block",
    "EncoderDecoder",
    "SpeechEncoder",
    "StackState",
    "StreamState",
    "Transformer",
]
