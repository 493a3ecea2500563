"""Texts as tokens: pairs of them, and texts to model."""

from linear_transformers.data.text.documents import Document, Documents
from linear_transformers.data.text.files import Multi30k, PairFiles
from linear_transformers.data.text.language import TextShape, TextSource
from linear_transformers.data.text.lines import decoded, lines_of
from linear_transformers.data.text.pairs import Pair, PairShape, PairSource, batch_of
from linear_transformers.data.text.segments import NOTHING
from linear_transformers.data.text.sources import PythonSources, TextFiles
from linear_transformers.data.text.tokens import (
    END,
    START,
    TOKENIZERS,
    UNKNOWN,
    Tokenizer,
)
from linear_transformers.data.text.transduction import Transductions

__all__ = [
    "END",
    "NOTHING",
    "START",
    "TOKENIZERS",
    "UNKNOWN",
    "Document",
    "Documents",
    "Multi30k",
    "Pair",
    "PairFiles",
    "PairShape",
    "PairSource",
    "PythonSources",
    "TextFiles",
    "TextShape",
    "TextSource",
    "Tokenizer",
    "Transductions",
    "batch_of",
    "decoded",
    "lines_of",
]
