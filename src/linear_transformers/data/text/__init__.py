"""Texts as tokens, and pairs of them."""

from linear_transformers.data.text.files import Multi30k, PairFiles
from linear_transformers.data.text.lines import decoded, lines_of
from linear_transformers.data.text.pairs import Pair, PairShape, PairSource, batch_of
from linear_transformers.data.text.tokens import END, START, TOKENIZERS, Tokenizer
from linear_transformers.data.text.transduction import Transductions

__all__ = [
    "END",
    "START",
    "TOKENIZERS",
    "Multi30k",
    "Pair",
    "PairFiles",
    "PairShape",
    "PairSource",
    "Tokenizer",
    "Transductions",
    "batch_of",
    "decoded",
    "lines_of",
]
