"""The edits between a decoded sequence of labels and its reference."""

from collections.abc import Sequence
from itertools import zip_longest

from rapidfuzz.distance import Levenshtein

NOTHING = 0  # the blank: it stands for the missing label of an insertion or a deletion


def edits(reference: Sequence[int], hypothesis: Sequence[int]) -> list[tuple[int, int]]:
    """Return the labels of the reference beside those of the hypothesis, with as few that differ
    as can be (Levenshtein). `NOTHING` is on one side of insertions and deletions."""
    found: list[tuple[int, int]] = []
    for code in Levenshtein.opcodes(list(reference), list(hypothesis)):
        ours = reference[code.src_start : code.src_end]
        theirs = hypothesis[code.dest_start : code.dest_end]
        found += zip_longest(ours, theirs, fillvalue=NOTHING)
    return found
