"""How a sequence of labels differs from the one it should be."""

from collections.abc import Sequence
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

NOTHING = 0  # the blank's number: what an inserted label stands for, and a deleted one becomes


class Edits(NamedTuple):
    """Pairs of a reference's label and what stands in its place, by kind."""

    matches: list[tuple[int, int]]
    substitutions: list[tuple[int, int]]
    deletions: list[tuple[int, int]]
    insertions: list[tuple[int, int]]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All of them; `NOTHING` on one side of insertions and deletions."""
        return [*self.matches, *self.substitutions, *self.deletions, *self.insertions]


def edits(reference: Sequence[int], hypothesis: Sequence[int]) -> Edits:
    """The fewest substitutions, deletions and insertions that lead from one to the other."""
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
