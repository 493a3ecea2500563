"""Words, separators and copies."""

import numpy as np
import pytest

from linear_transformers.data import Copies, CopyShape
from linear_transformers.data.copies import copies


@pytest.mark.parametrize("max_length", [3, 4, 20, 128])
def test_every_sequence_is_a_word_a_separator_and_the_word(max_length):
    shape = CopyShape(max_length, 10)
    lengths = set()
    for sequence in copies(shape, 300, seed=0).tolist():
        length = sequence.index(shape.separator)
        word, rest = sequence[:length], sequence[length + 1 :]
        assert max(word) < 10
        assert rest[:length] == word
        assert set(rest[length:]) <= {shape.padding}
        lengths.add(length)
    assert min(lengths) == 1
    assert max(lengths) == (max_length - 1) // 2


def test_splits_differ_and_are_always_the_same():
    first, again = (
        Copies(2, max_length=40, num_sequences=50, num_held_out=9, seed=seed).splits
        for seed in (0, 7)
    )
    assert [len(split) for split in first] == [50, 9, 9]
    for ours, theirs in zip(first, again, strict=True):
        assert np.array_equal(ours, theirs)
    rows = [tuple(row) for split in first for row in split.tolist()]
    assert len(set(rows)) > 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 2}, "max_length=2"),
        ({"num_symbols": 255}, "num_symbols=255"),
        ({"num_sequences": 0}, "num_sequences=0"),
        ({"num_held_out": 0}, "num_held_out=0"),
    ],
)
def test_numbers_that_make_no_task_are_refused(options, words, raises_one_line):
    with raises_one_line(words, "must be"):
        Copies(2, **options)
