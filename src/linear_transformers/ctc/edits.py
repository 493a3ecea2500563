"""The edits between a decoded sequence of labels and its reference."""

from collections.abc import Sequence
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

NOTHING = 0  # the blank: it stands for the missing label of an insertion or a deletion


class Edits(NamedTuple):
    """Pairs of a label of the reference and one of the hypothesis, by kind of edit."""

    matches: list[tuple[int, int]]
    substitutions: list[tuple[int, int]]
    deletions: list[tuple[int, int]]
    insertions: list[tuple[int, int]]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs, with `NOTHING` on one side of insertions and deletions."""
        return [*self.matches, *self.substitutions, *self.deletions, *self.insertions]


def edits(reference: Sequence[int], hypothesis: Sequence[int]) -> Edits:
    """Return the fewest edits that turn the reference into the hypothesis (Levenshtein)."""
    found = Edits([], [], [], [])
    for code in Levenshtein.opcodes(list(reference), list(hypothesis)):
        ours = reference[code.src_start : code.src_end]
        theirs = hypothesis[code.dest_start : code.dest_end]
        if code.tag == "equal":
            found.matches.extend(zip(ours, theirs, strict=True))
        elif code.tag == "replace":
            found.substitutions.extend(zip(ours, theirs, strict=True))
        elif code.tag == "delete":
            found.deletions.extend((label, NOTHING) for label in ours)
        else:
            found.insertions.extend((NOTHING, label) for label in theirs)
    return found
