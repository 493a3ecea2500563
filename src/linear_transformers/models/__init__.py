"""Stacks of blocks with embeddings and heads. Blocks and models keep attention's contract:
`forward`, `init_state`, `step`, `prefill`."""

from linear_transformers.models.autoregressive import AutoregressiveTransformer, ModelState
from linear_transformers.models.block import Block
from linear_transformers.models.embedding import TokenEmbedding

__all__ = ["AutoregressiveTransformer", "Block", "ModelState", "TokenEmbedding"]
