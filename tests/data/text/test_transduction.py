"""Pairs that are made as they are needed."""

from datetime import datetime
from itertools import combinations, product

import pytest
import torch

from linear_transformers.data import PairShape, Transductions
from linear_transformers.data.base import SPLITS
from linear_transformers.data.text import END, START
from linear_transformers.data.text.transduction import FIRST_DAY, FORMATS, FUNCTIONS, NUM_DAYS

SMALL = {"num_train": 300, "num_held_out": 60}
STRINGS = [*FUNCTIONS]


@pytest.mark.parametrize("function", STRINGS)
def test_targets_are_the_function_of_their_sources(function):
    data = Transductions(function=function, max_length=9, **SMALL)
    apply = {"copy": list, "reverse": lambda s: [*reversed(s)], "sort": sorted}[function]
    lengths = set()
    for split, count in zip(SPLITS, (300, 60, 60), strict=True):
        pairs = data.pairs(split)
        assert len(pairs) == count
        assert all(list(pair.target) == apply(pair.source) for pair in pairs)
        lengths |= {len(pair.source) for pair in pairs}
    assert lengths == set(range(1, 10))


@pytest.mark.parametrize("function", [*STRINGS, "dates"])
def test_no_item_is_in_two_splits(function):
    data = Transductions(function=function, max_length=3, **SMALL)
    items = [{pair.target if function == "dates" else pair.source for pair in data.pairs(split)}
             for split in SPLITS]  # fmt: skip
    assert all(one.isdisjoint(other) for one, other in combinations(items, 2))


@pytest.mark.parametrize("function", [*STRINGS, "dates"])
def test_no_pair_is_there_twice(function, raises_one_line):
    """Else a test set would be of the few short strings, time and again."""
    data = Transductions(function=function, max_length=3, **SMALL)
    for split in SPLITS:
        assert len({*data.pairs(split)}) == len(data.pairs(split))
    with raises_one_line("data.num_train=300000", "at most"):
        Transductions(function=function, max_length=3, num_train=300_000)


def test_pairs_are_the_same_whenever_they_are_made():
    first, second = (Transductions(seed=seed, **SMALL) for seed in (0, 1))
    for split in SPLITS:
        assert first.pairs(split) == second.pairs(split)


def test_no_two_days_are_written_alike():
    """In any of the formats, over days that have every month, day and last digit."""
    days = [FIRST_DAY.fromordinal(FIRST_DAY.toordinal() + i) for i in range(0, NUM_DAYS, 7)]
    written = {write(day): day for day, write in product(days, FORMATS)}
    assert len(written) == len(days) * len(FORMATS)


def test_dates_are_those_of_the_calendar():
    for pair in Transductions(**SMALL).pairs("test"):
        day = datetime.strptime(pair.target, "%Y-%m-%d")
        assert str(day.year) in pair.source
        assert str(day.day) in pair.source
        assert any(
            name in pair.source.lower()
            for name in (day.strftime("%b").lower(), f"/{day.month}/", f".{day.month}.")
        )


def test_batches_hold_every_pair_once_within_the_budget():
    data = Transductions(batch_tokens=200, function="reverse", max_length=12, **SMALL)
    decode = data.shape.tokenizer.decode
    for split in SPLITS:
        found = []
        for batch in data.loader(split):
            assert batch.source.numel() <= 200
            assert batch.target[:, :-1].numel() <= 200
            assert (batch.target[:, 0] == START).all()
            for source, n, target, m in zip(*batch, strict=True):
                assert target[m - 1] == END
                assert (source[n:] == END).all()
                found.append((decode(source[:n].tolist()), decode(target[1:m].tolist())))
        assert sorted(found) == sorted(data.pairs(split))


def test_the_shape_is_plain_and_makes_the_same_tokens():
    shape = Transductions(**SMALL).shape
    again = PairShape(shape.tokens, shape.vocabulary, shape.longest)
    assert again == shape
    assert again.tokenizer.encode("3 May 1994") == shape.tokenizer.encode("3 May 1994")
    assert shape.num_tokens == len(shape.vocabulary) + 3
    torch.testing.assert_close(shape.longest, max(
        len(text) for pair in Transductions(**SMALL).pairs("train") for text in pair
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"function": "squeeze"}, "data.function=squeeze is unknown. Choose one of ['copy'"),
        ({"tokens": "words"}, "data.tokens=words is unknown. Choose one of ['bpe', 'bytes'"),
        ({"max_length": 2}, "max_length"),
        ({"batch_tokens": 0}, "batch_tokens"),
    ],
)
def test_what_cannot_be_made_is_refused(options, words, raises_one_line):
    with raises_one_line(words):
        Transductions(**options)


def test_more_devices_than_pairs_are_refused(raises_one_line):
    with raises_one_line("The val split has 3 pairs, fewer than 4 devices."):
        Transductions(num_train=30, num_held_out=3).check(4)


def test_fewer_batches_than_devices_are_refused_before_a_run_begins(raises_one_line):
    data = Transductions(100_000, num_train=30, num_held_out=3)
    data.check(1)
    with raises_one_line("fewer batches than 2 devices", "data.batch_tokens"):
        data.check(2)
