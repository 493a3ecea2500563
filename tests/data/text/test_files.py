"""Pairs in files; every fault is named with its file and line."""

import gzip

import pytest

from linear_transformers.data import Multi30k, PairFiles
from linear_transformers.data.text.lines import read_pairs

SOURCES = ["ein Haus", "zwei Häuser ", "\u2028drei\u0085\x0c"]  # of which none ends a line
TARGETS = ["a house", "two houses", "three"]


def write(path, lines, *, end="\n") -> str:
    content = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


@pytest.fixture
def two(tmp_path):
    return [write(tmp_path / "a.de", SOURCES), write(tmp_path / "b.en.gz", TARGETS, end="\r\n")]


@pytest.fixture
def tabs(tmp_path):
    return write(tmp_path / "pairs.tsv", map("\t".join, zip(SOURCES, TARGETS, strict=True)))


def test_two_files_and_one_with_tabs_are_the_same_pairs(two, tabs):
    expected = [*zip(SOURCES, TARGETS, strict=True)]
    data = PairFiles(train=two, val=tabs, test=tabs)
    assert [data.pairs(split) for split in ("train", "val", "test")] == 3 * [expected]


def test_a_share_of_training_is_held_out(tmp_path):
    many = write(tmp_path / "many.tsv", [f"source {i}\ttarget {i}" for i in range(200)])
    data = PairFiles(train=many, test=many, val_share=0.1, seed=5)
    train, val = (set(data.pairs(split)) for split in ("train", "val"))
    assert (len(train), len(val), len(train | val)) == (180, 20, 200)
    assert set(PairFiles(train=many, test=many, val_share=0.1).pairs("val")) == val


def test_never_all_pairs_are_held_out(tmp_path):
    data = PairFiles(
        train=write(tmp_path / "two.tsv", ["a\tb", "c\td"]), test="unread", val_share=0.9
    )
    assert [len(data.pairs(split)) for split in ("train", "val")] == [1, 1]


def test_what_is_validated_on_is_not_trained_on(tmp_path):
    """A text of several translations is in one part; another pair leaves it there."""
    lines = [f"source {i // 3}\ttarget {i}" for i in range(300)]
    data = PairFiles(train=write(tmp_path / "many.tsv", lines), test="unread", val_share=0.1)
    train, val = ({pair.source for pair in data.pairs(split)} for split in ("train", "val"))
    assert (len(train), len(val), train & val) == (90, 10, set())
    more = PairFiles(train=write(tmp_path / "more.tsv", ["new\tneu", *lines]), test="unread",
                     val_share=0.1)  # fmt: skip
    assert len({pair.source for pair in more.pairs("val")} ^ val) <= 2


def test_long_pairs_are_left_out_of_training_and_counted(tmp_path):
    lines = ["short\tshort", f"{'x' * 40}\tshort", f"short\t{'y' * 31}", f"{'z' * 30}\tw"]
    path = write(tmp_path / "some.tsv", lines)
    data = PairFiles(train=path, val=path, test=path, max_tokens=30)
    alike = [f"4 of 4 {split} pairs are trained on, too" for split in ("val", "test")]
    long = "2 of 4 train pairs have more than 30 characters: left out"
    assert data.notes() == [long, *alike]
    assert data.shape.longest == 30
    sizes = {split: sum(len(b.source) for b in data.loader(split)) for split in ("train", "val")}
    assert sizes == {"train": 2, "val": 4}
    assert PairFiles(train=path, val=path, test=path).notes() == alike


def test_characters_that_no_training_text_has_are_counted(tmp_path):
    train, test = (write(tmp_path / f"{x}.tsv", [x]) for x in ("abc\tde", "abx\tyyd"))
    shared, note = PairFiles(train=train, val=train, test=test).notes()
    assert note.startswith("3 characters of test are in no training text")
    assert PairFiles(train=train, val=train, test=test, tokens="bytes").notes() == [shared]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\tb\nno tab\n", "bad.tsv, line 2 has 0 tabs: a source, a tab and a target are wanted."),
        (b"a\tb\tc\n", "bad.tsv, line 1 has 2 tabs"),
        (b"a\tb\n \tc\n", "bad.tsv, line 2 has an empty source."),
        (b"a\t\n", "bad.tsv, line 1 has an empty target."),
        (b"a\tb\nc\xfc\td\n", "bad.tsv, line 2: byte 2 is not UTF-8."),
    ],
)
def test_a_damaged_line_is_named(tmp_path, content, words, raises_one_line):
    path = tmp_path / "bad.tsv"
    path.write_bytes(content)
    with raises_one_line(words):
        read_pairs([path])


def test_files_that_do_not_belong_together_are_refused(tmp_path, raises_one_line):
    longer, shorter = tmp_path / "a.de", tmp_path / "b.en"
    write(longer, ["x", "y", "z"])
    write(shorter, ["1", "2"])
    with raises_one_line("b.en has 2 lines and", "a.de 3: line 3 of the latter has no other side."):
        read_pairs([longer, shorter])
    write(shorter, ["1", "", "3"])
    with raises_one_line("b.en, line 2 is empty."):
        read_pairs([longer, shorter])
    with raises_one_line("3 files were given"):
        read_pairs([longer, shorter, shorter])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none", None, "No such file"),
        ("cut.gz", gzip.compress(b"a\tb\n" * 99, mtime=0)[:-9], "it is damaged, or no gzip file."),
        ("plain.gz", b"a\tb\n", "it is damaged, or no gzip file."),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, words, raises_one_line):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with raises_one_line(f"{name} cannot be read: {words}"):
        read_pairs([tmp_path / name])


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_files_without_pairs_are_named(split, tabs, tmp_path, raises_one_line):
    paths = dict.fromkeys(("train", "val", "test"), tabs) | {split: write(tmp_path / "none", [])}
    with raises_one_line(f"There are no {split} pairs. Give a data.{split} that has some."):
        PairFiles(**paths).check(1)


def test_nothing_but_long_pairs_is_refused(tabs, raises_one_line):
    with raises_one_line("Every training pair has more than data.max_tokens=2 tokens."):
        PairFiles(train=tabs, val=tabs, test=tabs, max_tokens=2).check(1)


def test_multi30k_is_read_in_any_direction(tmp_path, raises_one_line):
    for split in ("train", "val", "test_2016_flickr"):
        write(tmp_path / f"{split}.en.gz", TARGETS)
        write(tmp_path / f"{split}.de", SOURCES)
    data = Multi30k(str(tmp_path), source="de", target="en")
    assert data.pairs("test") == [*zip(SOURCES, TARGETS, strict=True)]
    assert Multi30k(str(tmp_path)).pairs("val")[1] == (TARGETS[1], SOURCES[1])
    with raises_one_line("There is neither", "train.fr nor train.fr.gz. Give data.path=FOLDER."):
        Multi30k(str(tmp_path), target="fr").check(1)
    with raises_one_line("test_2019.en", "give data.source, data.target and data.test too."):
        Multi30k(str(tmp_path), test="test_2019").check(1)
