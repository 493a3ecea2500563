"""Texts to model: files become documents, documents become tokens, and those segments."""

import io
import os
from codecs import BOM_UTF8
from itertools import chain, pairwise

import numpy as np
import pytest

from linear_transformers.data import PythonSources, TextFiles
from linear_transformers.data.text import END, TOKENIZERS, Document, Documents, documents
from linear_transformers.data.text.documents import documents_of
from linear_transformers.data.text.segments import (
    NOTHING,
    DocumentBatches,
    Reading,
    SegmentBatches,
    SegmentsOf,
    segments_of,
)

TEXT = "Über den Wolken 🎈\nmuß die Freiheit\r\n\nwohl grenzenlos sein.\t\n" * 20


def write(path, content) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def places(segments) -> list[int]:
    return [place for start, size, _ in segments for place in range(start, start + size)]


def numbered(*sizes: int) -> Documents:
    """Documents whose tokens are numbered, so that a token tells its place."""
    return Documents(np.arange(sum(sizes)) + 1000, np.cumsum(sizes))


# Documents.


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 64, 10**6])
def test_the_parts_of_a_document_are_whole_characters_and_all_of_it(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(documents, "AT_ONCE", at_once)
    for text in (TEXT, TEXT.replace("\n", ""), "ß", "🎈🎈"):
        file = Document.of(tmp_path / write(tmp_path / "a", text))
        assert "".join(file.texts()) == text
        assert b"".join(file.parts()) == text.encode()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_are_the_text_and_their_pieces_its_bytes(tmp_path, kind):
    text = Document.of(tmp_path / write(tmp_path / "a", TEXT))
    tokenizer = TOKENIZERS[kind](TOKENIZERS[kind].learn([TEXT], 300))
    tokens, ends = documents_of([text, text], tokenizer, kind, tmp_path)
    assert len(tokens) == 2 * ends[0] == ends[1]
    assert [*np.flatnonzero(tokens == END)] == [end - 1 for end in ends]
    assert tokenizer.decode(tokens[: ends[0]].tolist()) == TEXT
    assert b"".join(tokenizer.pieces[i] for i in tokens[: ends[0]]).decode() == TEXT
    assert len(tokenizer.pieces) == tokenizer.num_tokens


def test_every_byte_pair_has_its_bytes():
    tokenizer = TOKENIZERS["bpe"](TOKENIZERS["bpe"].learn([TEXT], 300))
    assert {piece for piece in tokenizer.pieces if len(piece) == 1} == {
        bytes([byte]) for byte in range(256)
    }


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_large_texts_are_mapped_into_memory_and_checked_against_their_files(
    tmp_path, monkeypatch, kind
):
    texts = [Document.of(tmp_path / write(tmp_path / name, TEXT + name)) for name in "ab"]
    tokenizer = TOKENIZERS[kind](TOKENIZERS[kind].learn([TEXT, "ab"], 300))
    expected = documents_of(texts, tokenizer, kind, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(documents, "IN_MEMORY", 10)
    for _ in range(2):
        found = documents_of(texts, tokenizer, kind, tmp_path / "cache")
        assert isinstance(found.tokens, np.memmap)
        assert found.tokens.dtype == expected.tokens.dtype == np.uint16
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert len([*(tmp_path / "cache").iterdir()]) == 1
    write(tmp_path / "b", (TEXT + "b").replace("wohl", "Wohl"))  # as long as before
    os.utime(tmp_path / "b", ns=(0, 0))
    changed = documents_of(texts, tokenizer, kind, tmp_path / "cache")
    assert not np.array_equal(changed.tokens, expected.tokens)


@pytest.mark.parametrize("damage", ["values", "lengths"])
def test_cached_tokens_that_are_damaged_are_computed_again(tmp_path, monkeypatch, capsys, damage):
    monkeypatch.setattr(documents, "IN_MEMORY", 10)
    text = Document.of(tmp_path / write(tmp_path / "a", TEXT))
    tokenizer = TOKENIZERS["bytes"]("")
    expected = documents_of([text], tokenizer, "bytes", tmp_path / "cache").tokens.tolist()
    (file,) = (tmp_path / "cache").glob(f"*/{damage}.npy")
    whole, shorter = file.read_bytes(), io.BytesIO()
    np.save(shorter, np.load(file)[:-1])
    header = whole[:8] + b"\x09" + whole[9:]
    for torn in (whole[:-20], header, shorter.getvalue()):  # the last is an array, of other texts
        file.write_bytes(torn)
        found = documents_of([text], tokenizer, "bytes", tmp_path / "cache")
        assert found.tokens.tolist() == expected
        assert "The cached tokens in" in capsys.readouterr().err


# Segments.


@pytest.mark.parametrize("length", [1, 3, 7, 50])
@pytest.mark.parametrize("cut", [None, 0, 1])
def test_segments_are_all_of_the_documents_in_order(length, cut):
    random = None if cut is None else np.random.default_rng(cut)
    whole = numbered(1, 7, 20, 3)
    found = segments_of(whole, length, random)
    assert places(found) == [*range(31)]
    assert found[:, 1].max() <= length
    assert [start for start, _, continues in found if not continues] == [0, 1, 8, 28]


@pytest.mark.parametrize("carry_state", [False, True])
def test_the_devices_of_an_epoch_divide_its_batches(carry_state):
    whole = numbered(100, 61, 5, 240)
    one = SegmentBatches(Reading(whole, 8, 6, carry_state), seed=3)
    two = [SegmentBatches(Reading(whole, 8, 3, carry_state, i, 2), seed=3) for i in range(2)]
    for epoch in range(3):
        for each in (one, *two):
            each.set_epoch(epoch)
        batches = [*one]
        assert len(batches) == len(one) == len(two[0]) == 8  # of 13 + 8 + 1 + 30 segments
        assert batches == [left + right for left, right in zip(*two, strict=True)]
        seen = [
            place
            for batch in batches
            for start, size, _ in batch
            for place in range(start, start + size)
        ]
        assert len(seen) == len({*seen})
        one.skip = 5
        assert [*one] == batches[5:]


def test_an_epoch_cuts_documents_anew():
    batches = SegmentBatches(Reading(numbered(1000), 16, 4), seed=0)
    starts = []
    for epoch in range(3):
        batches.set_epoch(epoch)
        starts.append({start % 16 for batch in batches for start, _, _ in batch if start})
    assert all(len(each) == 1 for each in starts)
    assert len(set.union(*starts)) > 1


@pytest.mark.parametrize("training", [True, False])
def test_in_a_lane_each_segment_follows_the_one_before(training):
    whole = numbered(100, 61, 5, 240, 9, 9)
    reading = Reading(whole, 8, 3, carry_state=True)
    batches = SegmentBatches(reading, seed=1) if training else DocumentBatches(reading)
    lanes = [*zip(*batches, strict=True)]
    for lane in lanes:
        assert not lane[0][2]
        for (before, size, _), (start, length, continues) in pairwise(lane):
            assert start == before + size if continues else start in whole.starts or not length
    seen = sorted(places(chain(*lanes)))
    if not training:  # whole documents, all of them
        assert seen == [*range(424)]
        assert all(
            continues == (start not in whole.starts)
            for lane in lanes for start, size, continues in lane if size
        )  # fmt: skip


@pytest.mark.parametrize("carry_state", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_every_token_is_evaluated_once_in_as_many_batches_on_each_device(carry_state, world_size):
    whole = numbered(30, 7, 1, 100)
    parts = [
        [*DocumentBatches(Reading(whole, 8, 3, carry_state, i, world_size))]
        for i in range(world_size)
    ]
    assert len({len(part) for part in parts}) == 1
    seen = places(segment for part in parts for batch in part for segment in batch)
    assert sorted(seen) == [*range(138)]


def test_few_documents_have_longer_segments():
    batches = [*DocumentBatches(Reading(numbered(100), 8, 3, carry_state=True))]
    assert [size for ((_, size, _),) in batches] == [24, 24, 24, 24, 4]


def test_a_batch_says_what_is_before_its_segments():
    data = SegmentsOf(Reading(numbered(5, 6), 8, 3, carry_state=True))
    values, lengths, before = data[[[0, 3, 0], [7, 2, 1], [0, 0, 0]]]
    assert lengths.tolist() == [3, 2, 0]
    assert before.tolist() == [NOTHING, 1006, NOTHING]
    assert values.tolist() == [[1000, 1001, 1002], [1007, 1008, END], [END] * 3]
    alone = SegmentsOf(Reading(numbered(5), 8, 3))
    assert alone[[[0, 0, 0]]].values.shape == (1, 1)
    assert alone[[[0, 3, 0]]].before is None


# Files.


def names(texts):
    return [text.path.name for text in texts]


def test_the_end_of_one_file_is_held_out(tmp_path):
    """As nanoGPT divides it: the first nine tenths are trained on."""
    path = write(tmp_path / "a.txt", TEXT)
    data = TextFiles(2, path=path, segment=8)
    parts = [data.texts(split) for split in ("train", "val", "test")]
    assert "".join(text for part in parts for each in part for text in each.texts()) == TEXT
    sizes = [part[0].size for part in parts]
    assert sizes[0] == pytest.approx(0.9 * sum(sizes), abs=4)
    assert sizes[1] == pytest.approx(sizes[2], abs=4)


@pytest.mark.parametrize("count", range(200, 212))
def test_no_character_is_cut_where_it_is_held_out(tmp_path, count):
    """Of four bytes each, a cut can fall behind any of them."""
    text = "\U0001f600" * count
    data = TextFiles(2, path=write(tmp_path / "a.txt", text), segment=4)
    parts = [data.texts(split) for split in ("train", "val", "test")]
    assert "".join(text for part in parts for each in part for text in each.texts()) == text
    assert all(each.size % 4 == 0 for part in parts for each in part)


def test_a_folder_is_all_text_below_it(tmp_path):
    for i in range(40):
        write(tmp_path / f"texts/part-{i % 3}/{i}.md", f"{TEXT}{i}")
    write(tmp_path / "texts/picture.png", b"\x89PNG\0\0")
    write(tmp_path / "texts/.git/config", TEXT)
    write(tmp_path / "texts/empty", "")
    write(tmp_path / "texts/more.gz", b"\x1f\x8b")
    data = TextFiles(2, path=str(tmp_path / "texts"), segment=8)
    found = [{*names(data.texts(split))} for split in ("train", "val", "test")]
    assert [len(each) for each in found] == [36, 2, 2]
    assert set.union(*found) == {f"{i}.md" for i in range(40)}
    assert data.notes() == ["data.path: 3 of 43 files are empty or no text"]
    again = TextFiles(2, path=f"{tmp_path}/texts/**/*.md", segment=8, seed=5)
    assert [{*names(again.texts(split))} for split in ("train", "val", "test")] == found


def test_a_text_is_read_once_whatever_names_it_twice(tmp_path):
    (tmp_path / "inside").mkdir()
    for i in range(30):
        write(tmp_path / "inside" / f"{i}.txt", f"text {i}")
    (tmp_path / "link.txt").symlink_to(tmp_path / "inside" / "3.txt")
    data = TextFiles(2, path=f"{tmp_path}/**/**/*.txt", segment=8)
    found = [names(data.texts(split)) for split in ("train", "val", "test")]
    assert sum(map(len, found)) == 30


def test_characters_that_training_has_not_seen_are_counted(tmp_path):
    """A model of them does not say which they are: its bits per byte are too few."""
    train, test = (write(tmp_path / name, TEXT) for name in ("train", "test"))
    paths = {"path": train, "val": write(tmp_path / "val", TEXT + "λ%λ"), "test": test}
    (note,) = TextFiles(2, **paths, tokens="characters", segment=8).notes()
    assert note.startswith("3 characters of val are in no training text")
    assert TextFiles(2, **paths, segment=8).notes() == []


def test_texts_to_validate_and_test_on_are_given(tmp_path):
    paths = {s: write(tmp_path / s, TEXT + s) for s in ("train", "val", "test")}
    data = TextFiles(2, path=paths["train"], val=paths["val"], test=paths["test"])
    assert [names(data.texts(s)) for s in ("train", "val", "test")] == [
        ["train"],
        ["val"],
        ["test"],
    ]
    assert [data.texts(s)[0].size for s in paths] == [len((TEXT + s).encode()) for s in paths]


def test_another_text_leaves_the_others_in_their_parts(tmp_path):
    def parts() -> list[set[str]]:
        data = TextFiles(2, path=str(tmp_path), val_share=0.1, test_share=0.1)
        return [{*names(data.texts(split))} for split in ("train", "val", "test")]

    for i in range(50):
        write(tmp_path / f"{i}.txt", f"text {i}")
    before = parts()
    write(tmp_path / "another.txt", TEXT)
    for old, new in zip(before, parts(), strict=True):
        assert len(old - new) <= 2


def test_texts_to_validate_and_test_on_are_not_trained_on(tmp_path, raises_one_line):
    paths = {name: write(tmp_path / f"{name}.txt", TEXT + name) for name in ("a", "b", "c")}
    data = TextFiles(2, path=str(tmp_path), val=paths["b"], test=paths["c"])
    assert names(data.texts("train")) == ["a.txt"]
    assert data.notes() == ["data.path: 2 files are in data.val or data.test alone"]
    alike = TextFiles(2, path=str(tmp_path), val=paths["b"], test=paths["b"])
    assert names(alike.texts("train")) == ["a.txt", "c.txt"]
    assert alike.notes()[0] == "data.val and data.test share 1 file: tests of no worth"
    with raises_one_line("data.path=", "nothing but the texts of data.val and data.test"):
        TextFiles(2, path=paths["b"], val=paths["b"]).texts("train")


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ({"a.txt": ""}, "a.txt", "a.txt is empty. Give a file, a folder or a pattern of texts."),
        ({"a.gz": "x"}, "a.gz", "a.gz is compressed. Give what is in it."),
        ({"A.GZ": "x"}, "A.GZ", "A.GZ is compressed. Give what is in it."),
        ({"f/a.png": b"\0x", "f/b": ""}, "f", "f is a folder without text."),
        ({"f/a": "text"}, "g/*.txt", "names no text."),
        ({"a.txt": "x"}, "a.txt", "has too little text to hold out a share of val. Give data.val="),
    ],
)
def test_files_without_text_are_refused_in_one_line(tmp_path, files, path, message):
    for name, content in files.items():
        write(tmp_path / name, content)
    with pytest.raises(ValueError, match=r"data\.path=") as refused:
        TextFiles(2, path=str(tmp_path / path)).texts("train")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("share", [0, 1])
def test_neither_nothing_nor_all_is_held_out(share, raises_one_line):
    with raises_one_line(f"val_share={share}"):
        TextFiles(2, path="texts", val_share=share)


@pytest.mark.parametrize("count", [1, 20])
def test_the_mark_at_the_beginning_of_a_file_is_no_text(tmp_path, count):
    """As editors on Windows write it."""
    for number in range(count):
        write(tmp_path / f"{number}.txt", BOM_UTF8 + TEXT.encode())
        write(tmp_path / "without" / f"{number}.txt", TEXT)
    write(tmp_path / "mark.txt", BOM_UTF8)
    data = TextFiles(2, path=f"{tmp_path}/*.txt")
    expected = TextFiles(2, path=str(tmp_path / "without"))
    for split in ("train", "val", "test"):
        found, wanted = (
            [part for text in each.texts(split) for part in text.texts()]
            for each in (data, expected)
        )
        assert found == wanted


def test_bytes_are_bytes_and_other_tokens_are_of_utf_8(tmp_path):
    path = write(tmp_path / "latin.txt", TEXT.encode("latin-1", "replace"))
    data = TextFiles(2, path=path, segment=8)
    assert len(data.documents("train").tokens) == data.texts("train")[0].size + 1
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8\. Use data\.tokens=bytes"):
        TextFiles(2, path=path, segment=8, tokens="bpe").shape  # noqa: B018


def test_texts_that_fill_no_batch_are_refused(tmp_path):
    data = TextFiles(8, path=write(tmp_path / "a.txt", TEXT), segment=512)
    with pytest.raises(ValueError, match=r"\d+ training bytes do not fill one batch of 8 segments"):
        data.check(world_size=1)


def test_the_standard_library_is_divided_by_modules():
    data = PythonSources(8)
    found = {split: {*data.texts(split)} for split in ("train", "val", "test")}
    sizes = {split: sum(text.size for text in texts) for split, texts in found.items()}
    assert sum(map(len, found.values())) == len(set.union(*found.values()))
    assert sizes["train"] > 0.7 * sum(sizes.values())
    assert min(sizes.values()) > 0.01 * sum(sizes.values())
    (note,) = data.notes()
    assert note.startswith("the standard library of Python 3.")


def test_characters_that_no_trained_module_has_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    for module, text in {"abc": TEXT, "inspect": TEXT, "ftplib": TEXT + "λ"}.items():
        write(tmp_path / f"{module}.py", text)
    data = PythonSources(2, tokens="characters", segment=8)
    library, unknown = data.notes()
    assert library.startswith("the standard library of Python 3.")
    assert unknown.startswith("1 character of test is in no training text")
