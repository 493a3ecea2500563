"""Connectionist temporal classification (Graves et al., 2006): the loss, decoding, alignment and
edit distances. Label 0 is always the blank."""

from linear_transformers.ctc.align import Span, align
from linear_transformers.ctc.beam import beam_search
from linear_transformers.ctc.edits import edits
from linear_transformers.ctc.errors import commonest, confusions, error_rates
from linear_transformers.ctc.greedy import collapse, greedy
from linear_transformers.ctc.loss import ctc_loss, frames_needed, spellable
from linear_transformers.ctc.ngram import NGram

__all__ = [
    "NGram",
    "Span",
    "align",
    "beam_search",
    "collapse",
    "commonest",
    "confusions",
    "ctc_loss",
    "edits",
    "error_rates",
    "frames_needed",
    "greedy",
    "spellable",
]
