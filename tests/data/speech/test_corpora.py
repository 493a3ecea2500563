"""Manifests, labels, lexica and batches: faults are named, and nothing is guessed."""

import json
import lzma

import numpy as np
import pytest
import soundfile
import torch

from linear_transformers.data import (
    EspeakSpeech,
    LibriSpeech,
    ManifestSpeech,
    SpeechOcean,
    SpeechShape,
    WallStreetJournal,
)
from linear_transformers.data.batches import BucketBatches, SortedBatches
from linear_transformers.data.speech import read_audio
from linear_transformers.data.speech.base import Batches
from linear_transformers.data.speech.espeak import VOICES
from linear_transformers.data.speech.labels import PHONES, labels_of, units_of
from linear_transformers.data.speech.lexicon import Lexicon
from linear_transformers.data.speech.manifest import Utterance, read_manifest
from linear_transformers.data.speech.sentences import sentence
from linear_transformers.data.speech.synthesis import ARPABET, speak
from linear_transformers.data.speech.wsj import spoken_words

RATE = 16000


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).standard_normal(round(seconds * RATE))


def write_corpus(folder, count: int = 12, **changes) -> None:
    """Manifests train, val, test of noise; `changes` are made to the first line of train."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test"):
        lines = []
        for i in range(count):
            seconds = 0.4 + 0.05 * i
            soundfile.write(folder / f"{split}{i}.wav", noise(seconds, i), RATE)
            row = {
                "audio": f"{split}{i}.wav", "duration": seconds, "speaker": f"s{i % 4}",
                "phones": "HH AH0 L OW1", "text": "hello",
            }  # fmt: skip
            lines.append(json.dumps(row | (changes if split == "train" and i == 0 else {})))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def corpus(folder, **options) -> ManifestSpeech:
    paths = {split: str(folder / f"{split}.jsonl") for split in ("train", "val", "test")}
    return ManifestSpeech(str(folder), **(paths | options))


@pytest.mark.parametrize(
    ("phones", "said"),
    [
        ("HH AX0 L OVV1", ["AX, OVV", "6"]),
        ("hh ah l OVV1", ["OVV", "8"]),  # in two cases, now that case may matter
        ("hh ah l ow", []),
        ("h @ l @U S e 2: 2~ E:", []),  # most are another set's
    ],
)
def test_a_phone_that_is_misspelt_is_noted(tmp_path, phones, said):
    """It would be a label of its own, and phones that training lacks would be none."""
    write_corpus(tmp_path, phones=phones)
    data = corpus(tmp_path)
    assert set(data.shape.labels) >= {"HH", "AH", "L", "OW"}
    lacks = "phones that CMUdict lacks: {}; so the labels are the {} that occur, not its 39"
    assert data.notes() == ([lacks.format(*said)] if said else [])


def test_transcripts_come_in_one_form():
    composed, decomposed = "caf\u00e9 d\u2019or\u2014Oui!", "cafe\u0301  D'OR  oui"
    assert units_of(composed, "characters") == units_of(decomposed, "characters")
    assert "".join(units_of(composed, "characters")) == "CAF\u00c9 D'OR OUI"
    assert units_of("hh ah0 l OW1", "phones") == ("hh", "ah", "l", "OW")


def test_labels_are_the_dictionarys_or_those_that_occur():
    assert labels_of([("AA", "B")], "phones") == PHONES
    assert len(PHONES) == len(set(PHONES)) == 39
    assert labels_of([("b", "a"), ("a",)], "phones") == ("a", "b")
    shape = SpeechShape(40, RATE, "phones", ("a", "b"))
    assert shape.decode(shape.encode(["b", "a", "b"])) == "b a b"
    assert shape.encode(["a"]) == [1]  # 0 is the blank


def test_case_tells_phones_apart_but_for_the_dictionarys():
    spoken = [units_of(line, "phones") for line in ("s @ S 2:", "S e s")]
    assert labels_of(spoken, "phones") == ("2:", "@", "S", "e", "s")
    german = SpeechShape(40, RATE, "phones", labels_of(spoken, "phones"))
    assert german.decode(german.encode(spoken[0])) == "s @ S 2:"
    english = SpeechShape(40, RATE, "phones", labels_of([units_of("hh AH0", "phones")], "phones"))
    assert english.labels == PHONES
    assert english.decode(english.encode(units_of("sh iy1", "phones"))) == "SH IY"


def test_a_label_outside_of_the_set_is_refused(raises_one_line):
    with raises_one_line("'x'", "2 phones"):
        SpeechShape(40, RATE, "phones", ("a", "b")).encode(["a", "x"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ("not JSON",)),
        ("[1]", ("object", "list")),
        ('{"phones": "B"}', ("`audio` is missing",)),
        ('{"audio": "a.wav", "duration": -1, "phones": "B"}', ("`duration` is -1",)),
        ('{"audio": "a.wav", "duration": NaN, "phones": "B"}', ("`duration` is nan",)),
        ('{"audio": "a.wav", "duration": Infinity, "phones": "B"}', ("`duration` is inf",)),
        (
            '{"audio": "a.wav", "duration": 1%s, "phones": "B"}' % ("0" * 400),
            ("`duration` is 1000",),
        ),
        ('{"audio": "a.wav", "phones": 3}', ("`phones` is 3",)),
        ('{"audio": "a.wav", "phones": ""}', ("nothing is said",)),
        ('{"audio": "a.wav", "phones": "s 9 n"}', ("'9'", "ARPAbet")),
        ('{"audio": "a.wav", "text": 3, "phones": "B"}', ("`text` is 3",)),
        ('{"audio": "a.wav", "text": "hello"}', ("data.lexicon=FILE", "data.labels=characters")),
        ('{"audio": "a.wav"}', ("`phones` and `text` are both missing",)),
        (r'{"audio": "a\u0000.wav", "phones": "B"}', ("`audio` is missing",)),
        (r'{"audio": "a\ud800.wav", "phones": "B"}', ("lone surrogate",)),
    ],
)
def test_every_fault_of_a_manifest_is_told_with_its_line(tmp_path, line, words):
    path = tmp_path / "m.jsonl"
    path.write_text('{"audio": "a.wav", "phones": ["B"]}\n\n' + line + "\n")
    good, bad = read_manifest(path, "phones")
    assert isinstance(good, Utterance)
    assert (good.audio, good.units) == (tmp_path / "a.wav", ("B",))
    assert isinstance(bad, str)
    assert bad.startswith(f"{path}:3: ")
    assert all(word in bad for word in words)


def test_manifests_that_are_none_are_refused(tmp_path, raises_one_line):
    path = tmp_path / "m.jsonl"
    with raises_one_line("does not exist"):
        list(read_manifest(path, "phones"))
    path.write_text(" \n")
    with raises_one_line("empty"):
        list(read_manifest(path, "phones"))
    path.write_bytes(b"\xff\xfe\x00")
    with raises_one_line("UTF-8"):
        list(read_manifest(path, "phones"))


def test_validation_reports_every_fault_at_once(tmp_path):
    write_corpus(tmp_path, duration=9.0)
    lines = (tmp_path / "test.jsonl").read_text().splitlines()
    lines[2] = "{"
    lines[4] = lines[3].replace("test3.wav", "train1.wav").replace("0.55", "0.45")
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    (tmp_path / "val3.wav").write_bytes(b"RIFF")
    (tmp_path / "val5.wav").unlink()
    with pytest.raises(ValueError, match="5 faults") as caught:
        corpus(tmp_path, validate=True).utterances("train")
    places = [line.split(": ")[0] for line in str(caught.value).splitlines()[1:]]
    lines = ("train.jsonl:1", "val.jsonl:4", "val.jsonl:6", "test.jsonl:3", "test.jsonl:5")
    assert places == [f"{tmp_path}/{line}" for line in lines]
    assert f"train1.wav is that of {tmp_path}/train.jsonl:2, too" in str(caught.value)


def test_validation_refuses_one_manifest_for_two_splits(tmp_path):
    write_corpus(tmp_path, duration=9.0)
    train = tmp_path / "train.jsonl"
    with pytest.raises(ValueError, match="2 faults in the data") as caught:
        corpus(tmp_path, test=str(train), validate=True).utterances("train")
    same, damaged = str(caught.value).splitlines()[1:]
    assert same == f"data.test={train} is the manifest of data.train, too."
    assert damaged.startswith(f"{train}:1: ")


def test_validation_knows_what_is_said_by_those_who_are_not_held_out(tmp_path):
    write_corpus(tmp_path)
    held = {u.speaker for u in corpus(tmp_path, val=None, val_share=0.25).utterances("val")}
    (speaker,) = held
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    for row in rows:
        row["phones"] += " ZH" if row["speaker"] == speaker else ""
        row["phones"] = row["phones"].replace("HH", "X")  # no phone of CMUdict: else all are known
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "test.jsonl").write_text(
        "\n".join(map(json.dumps, rows[:1])).replace(" ZH", "").replace("train0", "test0")
    )
    with pytest.raises(ValueError, match="3 faults in the data") as caught:
        corpus(tmp_path, val=None, val_share=0.25, validate=True).utterances("train")
    assert "'ZH' is not said in training" in str(caught.value)


def test_without_validation_the_first_fault_is_told(tmp_path, raises_one_line):
    write_corpus(tmp_path, duration=9.0)
    with raises_one_line("train0.wav", "lasts 0.40 s", "9.00 s"):
        corpus(tmp_path).check(1)
    (tmp_path / "test.jsonl").write_text("{\n[\n")
    with raises_one_line("test.jsonl:1", "not JSON", "1 more", "data.validate=true"):
        corpus(tmp_path).utterances("test")


def test_without_a_validation_manifest_speakers_are_held_out(tmp_path):
    write_corpus(tmp_path)
    data = corpus(tmp_path, val=None, val_share=0.25)
    speakers = {s: {u.speaker for u in data.utterances(s)} for s in ("train", "val")}
    assert speakers["train"] | speakers["val"] == {"s0", "s1", "s2", "s3"}
    assert not speakers["train"] & speakers["val"]
    assert len(data.utterances("train")) + len(data.utterances("val")) == 12


def test_of_one_speaker_nobody_can_be_held_out(tmp_path, raises_one_line):
    rows = [{"audio": f"{i}.wav", "speaker": "me", "phones": "B"} for i in range(9)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with raises_one_line("one speaker, me", "data.val=FILE"):
        corpus(tmp_path, val=None, val_share=0.25).utterances("val")
    rows = [{"audio": f"{i}/0.wav", "phones": "B"} for i in range(4)]  # of whom is unknown
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(corpus(tmp_path, val=None, val_share=0.25).utterances("val")) == 1


@pytest.mark.parametrize(
    ("share", "held"),
    [(0.001, 1), (0.05, 5), (0.1, 10), (0.25, 25), (0.4, 40), (0.6, 60), (0.9, 90), (0.999, 99)],
)
def test_as_many_speakers_are_held_out_as_were_asked_for(tmp_path, share, held):
    rows = ({"audio": "a.wav", "speaker": f"s{i:02d}", "phones": "B"} for i in range(100))
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = corpus(tmp_path, val=None, val_share=share)
    speakers = [u.speaker for u in data.utterances("val")]
    assert len(speakers) == held
    assert len(data.utterances("train")) == 100 - held
    if share == 0.1:  # a choice that earlier runs depend on
        assert speakers == [f"s{i:02d}" for i in range(5, 100, 10)]


def test_batches_hold_each_utterance_as_it_is_alone(tmp_path):
    write_corpus(tmp_path)
    data = corpus(tmp_path, batch_frames=200)
    data.check(1)
    seen = 0
    for batch in data.loader("test"):
        assert batch.features.shape[0] * batch.features.shape[1] <= 200
        for row, length, labels in zip(*batch[:3], strict=True):
            (_,) = [
                i for i in range(12)
                if len(own := data.features("test").get(i)) == length
                and torch.equal(torch.from_numpy(own.astype(np.float32)), row[:length])
            ]  # fmt: skip
            assert not row[length:].any()
            assert data.shape.decode([x for x in labels.tolist() if x]) == "HH AH L OW"
            seen += 1
    assert seen == 12


def test_no_speed_at_all_is_refused(tmp_path, raises_one_line):
    with raises_one_line("data.speeds is empty"):
        corpus(tmp_path, speeds=[])


def test_features_are_computed_once(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    first = corpus(tmp_path, speeds=[0.9, 1.0])
    first.check(1)
    monkeypatch.setattr(
        "linear_transformers.data.speech.corpus.read_audio",
        lambda *_, **__: pytest.fail("it is in the cache"),
    )
    again = corpus(tmp_path, speeds=[0.9, 1.0])
    again.check(1)
    np.testing.assert_array_equal(again.features("train").frames, first.features("train").frames)
    mean, deviation = again.features("train").statistics()
    frames = first.features("train").frames.astype(np.float64)
    np.testing.assert_allclose(mean, frames.mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation, frames.std(0), rtol=1e-4)
    assert not list(tmp_path.rglob("*.part"))


def test_an_interrupted_cache_is_made_again(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    with monkeypatch.context() as patch:

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        patch.setattr("linear_transformers.data.speech.corpus.log_mel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            corpus(tmp_path).check(1)
    assert not list(tmp_path.rglob("*.part"))
    corpus(tmp_path).check(1)


def test_what_cannot_be_spelt_is_left_out_or_refused(tmp_path, raises_one_line):
    write_corpus(tmp_path, count=120, phones=" ".join(["B"] * 30))
    data = corpus(tmp_path)
    (said,) = data.leave_out(lambda frames: (frames - 1) // 4 + 1)
    assert "1 of 120 train" in said
    assert "train0.wav" in said
    kept = [i for batch in data.loader("train").sampler for i in batch]
    assert sorted(kept) == list(range(119))
    with raises_one_line("120 of 120", "task.encoder.subsampling"):
        data.leave_out(lambda frames: 3)


def test_an_utterance_of_ones_own_may_say_nothing(tmp_path):
    """Its labels are whole numbers, as those of the others."""
    write_corpus(tmp_path)
    features = corpus(tmp_path).features("train")
    batch = Batches(features, np.arange(2), [[], [3, 4]])[[0, 1]]
    assert batch.labels.dtype == torch.long
    assert batch.labels.tolist() == [[0, 0], [3, 4]]
    assert batch.label_lengths.tolist() == [0, 2]


def test_utterances_that_are_too_long_are_not_trained_on(tmp_path, raises_one_line):
    write_corpus(tmp_path)  # 0.40 s ... 0.95 s
    data = corpus(tmp_path, max_seconds=0.7, speeds=[0.9, 1.0])
    (said,) = data.leave_out(lambda frames: frames)
    assert "5 of 12 train utterances are longer than 0.7 s" in said
    assert len(data.trained) == 7
    assert data.longest == pytest.approx(70 / 0.9, abs=2)
    with raises_one_line("No utterances are left"):
        corpus(tmp_path, max_seconds=0.1).leave_out(lambda frames: frames)


def test_labels_that_training_lacks_are_refused_before_it(tmp_path, raises_one_line):
    write_corpus(tmp_path, phones="SPN")  # one that CMUdict does not know: the set is what occurs
    lines = (tmp_path / "test.jsonl").read_text().splitlines()
    (tmp_path / "test.jsonl").write_text("\n".join([lines[0].replace("HH AH0", "ZH"), *lines[1:]]))
    with raises_one_line("test.jsonl:1", "'ZH'"):
        corpus(tmp_path).check(1)
    with pytest.raises(ValueError, match=r"test.jsonl:1: 'ZH' is not said in training"):
        corpus(tmp_path, validate=True).utterances("val")


def test_recordings_without_a_frame_are_refused_by_name(tmp_path, raises_one_line):
    write_corpus(tmp_path)
    soundfile.write(tmp_path / "val3.wav", noise(0.02), RATE)
    lines = (tmp_path / "val.jsonl").read_text().replace('"duration": 0.55', '"duration": 0.02')
    (tmp_path / "val.jsonl").write_text(lines)
    with raises_one_line("val3.wav", "25 ms"):
        corpus(tmp_path).check(1)


def test_what_is_read_otherwise_is_read_again(tmp_path, raises_one_line):
    write_corpus(tmp_path)
    soundfile.write(tmp_path / "train0.wav", np.stack([noise(0.4)] * 2, axis=1), RATE)
    corpus(tmp_path).check(1)
    with raises_one_line("train0.wav", "2 channels"):
        corpus(tmp_path, convert=False).check(1)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_buckets_cover_everything_within_the_budget(world_size):
    lengths = np.random.default_rng(0).integers(10, 400, size=500)
    ranks = [
        BucketBatches(lengths, 2000, 7, rank=rank, world_size=world_size, variants=2)
        for rank in range(world_size)
    ]
    for epoch in (0, 1):
        items, counts = [], []
        for batches in ranks:
            batches.set_epoch(epoch)
            made = list(batches)
            assert made == list(batches)
            assert len(made) == len(batches)
            counts.append(len(made))
            for batch in made:
                assert len(batch) * lengths[np.array(batch) // 2].max() <= 2000
            items += [i for batch in made for i in batch]
        assert len(set(counts)) == 1
        assert len({i // 2 for i in items}) == len(items)
        assert len(items) > 500 - 40 * world_size
        if world_size == 1:
            assert len(items) == 500
            assert 150 < sum(i % 2 for i in items) < 350
    first, second = (list(BucketBatches(lengths, 2000, seed)) for seed in (0, 1))
    assert first != second
    padded = sum(len(b) * lengths[b].max() for b in first)
    assert padded < 1.15 * lengths.sum()


@pytest.mark.parametrize("count", [3, 17, 100])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_sees_everything_once_in_equally_many_batches(world_size, count):
    lengths = np.random.default_rng(0).integers(10, 400, size=count)
    ranks = [
        list(SortedBatches(lengths, 2000, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    every = [batch for batches in ranks for batch in batches]
    assert sorted(i for batch in every for i in batch) == list(range(count))
    assert all(every)
    assert all(len(b) * lengths[b].max() <= 2000 for b in every)


def test_a_device_with_an_utterance_too_few_waits_for_nobody():
    lengths = np.full(17, 1000)
    for budget in (8000, 1000):
        ranks = [list(SortedBatches(lengths, budget, rank=r, world_size=2)) for r in range(2)]
        assert len(ranks[0]) == len(ranks[1])
        assert sum(len(b) for batches in ranks for b in batches) == 17


def test_words_are_looked_up_and_never_guessed(tmp_path, raises_one_line):
    path = tmp_path / "dict"
    path.write_text(
        ";;; a comment\nhello HH AH0 L OW1 # greeting\nhello(2) HH EH0 L OW1\nbus B AH1 S\n"
        "dog D AO1 G\ncat K AE1 T\ncat's K AE1 T S\n"
    )
    lexicon = Lexicon(path)
    assert lexicon("Hello, dog!") == ("HH", "AH", "L", "OW", "D", "AO", "G")
    assert lexicon("cat-dog") == ("K", "AE", "T", "D", "AO", "G")
    assert lexicon("dog's bus's cat\N{RIGHT SINGLE QUOTATION MARK}s") == (
        *("D", "AO", "G", "Z"),
        *("B", "AH", "S", "IH", "Z"),
        *("K", "AE", "T", "S"),
    )
    with raises_one_line("'ZEBRA'"):
        lexicon("dog zebra")
    with raises_one_line("does not exist"):
        Lexicon(tmp_path / "none")
    path.write_text(";;; nothing\n")
    with raises_one_line("lists no words"):
        Lexicon(path)


def test_hyphenated_words_are_looked_up_whole_before_their_parts(tmp_path, raises_one_line):
    path = tmp_path / "dict"
    path.write_text("x-ray B\nx-ray's B S\ny-ray D\nx K\nray R\nman M\n")
    lexicon = Lexicon(path)
    for text, phones in (
        ("X-ray, man,x-ray", "B M B"),
        ("x-ray's y-ray's", "B S D Z"),
        ("x-man ray-man's", "K M R M Z"),
        ("-x-ray - man--x-", "B M K"),
    ):
        assert lexicon(text) == tuple(phones.split())
    with raises_one_line("'ZEBRA'"):
        lexicon("x-zebra")


def test_a_damaged_lexicon_is_named(tmp_path, raises_one_line):
    whole = lzma.compress(b"hello HH AH0 L OW1\n")
    for name, content in {"a.xz": b"hello", "b.xz": whole[:-9], "c": b"\xff\xfe"}.items():
        (tmp_path / name).write_bytes(content)
        with raises_one_line(f"{tmp_path / name} cannot be read"):
            Lexicon(tmp_path / name)


def test_texts_become_phones_by_a_lexicon_or_characters(tmp_path):
    write_corpus(tmp_path, phones=None)
    (tmp_path / "dict").write_text("hello HH AH0 L OW1\n")
    data = corpus(tmp_path, lexicon=str(tmp_path / "dict"))
    assert data.utterances("train")[0].units == ("HH", "AH", "L", "OW")
    letters = corpus(tmp_path, labels="characters")
    assert letters.utterances("train")[0].units == tuple("HELLO")
    assert letters.shape.labels == ("E", "H", "L", "O")


def test_librispeech_is_read_as_it_is_laid_out(tmp_path, raises_one_line):
    for part in ("train-clean-100", "dev-clean", "test-clean"):
        folder = tmp_path / "LibriSpeech" / part / "19/198"
        folder.mkdir(parents=True)
        (folder / "19-198.trans.txt").write_text("19-198-0000 HELLO DOG\n19-198-0001 HELLO ZEBRA\n")
        for i in range(2):
            soundfile.write(folder / f"19-198-000{i}.flac", noise(0.5, i), RATE)
    (tmp_path / "dict").write_text("hello HH AH0 L OW1\ndog D AO1 G\n")
    data = LibriSpeech(str(tmp_path), lexicon=str(tmp_path / "dict"))
    (only,) = data.utterances("train")  # the zebra is not in the lexicon
    assert only.units == ("HH", "AH", "L", "OW", "D", "AO", "G")
    assert only.speaker == "19"
    assert data.notes() == [
        "1 of 2 train utterances have a word that is not in the lexicon, or was not said to its "
        "end: left out"
    ]
    data.check(1)
    assert len(LibriSpeech(str(tmp_path), labels="characters").utterances("train")) == 2
    with raises_one_line("data.lexicon=FILE", "data.labels=characters"):
        LibriSpeech(str(tmp_path))
    with raises_one_line("train-other-500", "data.download=true"):
        LibriSpeech(str(tmp_path), train="train-other-500", labels="characters").utterances("train")


def test_a_split_without_utterances_says_why_in_words_of_its_own(tmp_path):
    for part, second in (("train-clean-100", "HELLO"), ("dev-clean", "ZEBRA"), ("test-clean", "")):
        folder = tmp_path / "LibriSpeech" / part / "19/198"
        folder.mkdir(parents=True)
        lines = ["19-198-0000 ZEBRA\n", f"19-198-0001 {second}\n"][: 2 if second else 0]
        (folder / "19-198.trans.txt").write_text("".join(lines))
        for i in range(len(lines)):
            soundfile.write(folder / f"19-198-000{i}.flac", noise(0.5, i), RATE)
    (tmp_path / "dict").write_text("hello HH AH0 L OW1\n")
    data = LibriSpeech(str(tmp_path), lexicon=str(tmp_path / "dict"))
    assert len(data.utterances("train")) == 1
    with pytest.raises(ValueError, match=r"^The val split has no utterances\. 2 of 2 val "):
        data.utterances("val")
    with pytest.raises(ValueError, match=r"^The test split has no utterances\.$"):
        data.utterances("test")


def test_a_part_of_librispeech_that_is_not_whole_is_one_line(tmp_path, raises_one_line):
    folder = tmp_path / "LibriSpeech/train-clean-100/19/198"
    folder.mkdir(parents=True)
    soundfile.write(folder / "19-198-0000.flac", noise(0.5), RATE)
    (folder / "19-198.trans.txt").write_text("19-198-0001 HELLO\n")
    with raises_one_line("train-clean-100 is not in", "not found for 19-198-0000"):
        LibriSpeech(str(tmp_path), labels="characters").utterances("train")


def write_speechocean(root, speakers=("0001", "0002", "0003")) -> None:
    """Two utterances a speaker, whose recordings and tables lie as OpenSLR 101 has them."""
    said = {"": ("HELLO DOG", ("HH_B AH0_I L_I OW1_E", "D_B AO0_I G_E")), "1": ("A", ("AH0_S",))}
    phones = []
    for part, names in (("train", speakers), ("test", ("0009",))):
        tables: dict[str, list[str]] = {"wav.scp": [], "utt2spk": [], "text": []}
        for speaker in names:
            for i, (text, words) in enumerate(said.values()):
                name, audio = f"{speaker}0001{i}", f"WAVE/SPEAKER{speaker}/{speaker}0001{i}.WAV"
                (root / audio).parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(root / audio, noise(0.5, i), RATE)
                tables["wav.scp"].append(f"{name}\t{audio}")
                tables["utt2spk"].append(f"{name} {speaker}")
                tables["text"].append(f"{name}\t{text}")
                phones += [f"{name}.{place}\t{word}" for place, word in enumerate(words)]
        (root / part).mkdir()
        for table, lines in tables.items():
            (root / part / table).write_text("\n".join(lines) + "\n")
    (root / "resource").mkdir()
    (root / "resource/text-phone").write_text("\n".join(phones[::-1]) + "\n")  # in any order


def test_speechocean_is_read_as_it_is_published(tmp_path):
    write_speechocean(tmp_path)
    data = SpeechOcean(str(tmp_path), path=str(tmp_path), val_share=0.4, batch_frames=200)
    spoken = {split: data.utterances(split) for split in ("train", "val", "test")}
    assert {split: {u.speaker for u in found} for split, found in spoken.items()} == {
        "train": {"0001", "0003"}, "val": {"0002"}, "test": {"0009"},
    }  # fmt: skip
    first, second = spoken["test"]
    assert (first.units, first.text) == (("HH", "AH", "L", "OW", "D", "AO", "G"), "HELLO DOG")
    assert second.units == ("AH",)
    assert data.shape.labels == PHONES
    (batch,) = data.loader("test")
    assert batch.features.shape[0] == 2
    assert batch.label_lengths.tolist() == [7, 1]
    letters = SpeechOcean(str(tmp_path), path=str(tmp_path), labels="characters")
    assert "".join(letters.utterances("test")[0].units) == "HELLO DOG"


def test_speechocean_is_the_manifest_of_the_same_recordings(tmp_path):
    """Speakers are held out alike, so that figures can be compared."""
    speakers = [f"{i:04}" for i in range(20, 41)]
    write_speechocean(tmp_path, speakers)
    published = SpeechOcean(str(tmp_path), path=str(tmp_path))
    for part in ("train", "test"):
        found = published._listed(part)
        rows = [
            {"audio": str(u.audio), "phones": list(u.units), "speaker": u.speaker, "text": u.text}
            for u in found
        ]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    written = ManifestSpeech(
        str(tmp_path), train=f"{tmp_path}/train.jsonl", val=None, test=f"{tmp_path}/test.jsonl"
    )
    for split in ("train", "val", "test"):
        for mine, its in zip(published.utterances(split), written.utterances(split), strict=True):
            assert mine._replace(place="") == its._replace(place="")


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("train/wav.scp", "000100010 sox a.wav - |", ("wav.scp:1", "command to run")),
        ("train/wav.scp", "000100010", ("wav.scp:1", "has no value")),
        ("train/wav.scp", "7 WAVE/7.WAV", ("wav.scp:1", "utt2spk has nothing on 7")),
        ("train/text", "000100011\tTWICE", ("text:2", "is in", "text:1, too")),
        ("resource/text-phone", "0009 AH0_S", ("text-phone:1", "is not UTTERANCE.WORD")),
        ("resource/text-phone", "x.0 AH0_S", ("resource/text-phone has nothing on 000900011",)),
    ],
)
def test_a_faulty_speechocean_is_named(tmp_path, raises_one_line, file, line, words):
    write_speechocean(tmp_path)
    lines = (tmp_path / file).read_text().splitlines()
    (tmp_path / file).write_text("\n".join([line, *lines[1:]]))
    data = SpeechOcean(str(tmp_path), path=str(tmp_path))
    with raises_one_line(*words):
        data.utterances("test" if "000900011" in words[0] else "train")


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    write_speechocean(tmp_path)
    file = tmp_path / "train/wav.scp"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert SpeechOcean(str(tmp_path), path=str(tmp_path)).utterances("train")


def test_a_folder_that_is_no_speechocean_is_refused(tmp_path, raises_one_line):
    with raises_one_line("train/wav.scp does not exist", "data.path=FOLDER"):
        SpeechOcean(str(tmp_path), path=str(tmp_path)).utterances("train")


def write_wsj(root, discs: bool) -> None:
    """Two utterances a list, on discs or in one folder; the lexicon lacks the zebra."""
    place = {"wsj0": "11-13.1", "wsj1": "13-34.1"} if discs else {"wsj0": "", "wsj1": ""}
    train, dev = "wsj1/si_tr_s/460/460c020", "wsj1/si_dt_20/4k0/4k0c030"
    listed = {
        "wsj0/doc/indices/train/tr_s_wv1.ndx": (
            "wsj0/si_tr_s/01i/01ic0201.wv1", "wsj0/si_tr_s/401/401c0201.wv1",
        ),
        "wsj1/doc/indices/si_tr_s.ndx": (f"{train}1.wv1", f"{train}2.wv1"),
        "wsj1/doc/indices/h1_p0.ndx": (f"{dev}1.wv1", f"{dev}2.wv1"),
        "wsj0/doc/indices/test/nvp/si_et_20.ndx": ("/wsj0/si_et_20/440/440c0401",),
    }  # fmt: skip
    dots = {
        "01ic0201": "HELLO [loud_breath] DOG .",
        "460c0201": '*HELLO* ,COMMA "DOUBLE-QUOTE DO:G~',
        "460c0202": "HELLO ZEBRA",
        "4k0c0301": "DOG DO- HELLO",
        "4k0c0302": "!DOG HELLO",
        "440c0401": "DOG .PERIOD",
    }
    for index, names in listed.items():
        top = place[index[:4]]
        (root / top / index).parent.mkdir(parents=True, exist_ok=True)
        disc = {"wsj0": "11_13_1", "wsj1": "13_34_1"}[index[:4]]
        (root / top / index).write_text(
            "; a list\n" + "".join(f"{disc}:{name}\n" for name in names)
        )
        for name in names:
            audio = root / top / name.lstrip("/").removesuffix(".wv1")
            if audio.name in dots:
                audio.parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(f"{audio}.wv1", noise(0.5), RATE, format="NIST", subtype="PCM_16")
                line = f"{dots[audio.name]} ({audio.name})\n"
                audio.with_suffix(".dot").write_text(line)
    (root / "dict").write_text(
        "hello HH AH0 L OW1\ndog D AO1 G\ncomma K AA1 M AH0\nperiod P IH1 R IY0 AH0 D\n"
        "double D AH1 B AH0 L\nquote K W OW1 T\n"
    )


@pytest.mark.parametrize("discs", [True, False])
def test_the_wall_street_journal_is_read_as_the_ldc_lays_it_out(tmp_path, discs):
    write_wsj(tmp_path, discs)
    data = WallStreetJournal(
        str(tmp_path), path=str(tmp_path), lexicon=str(tmp_path / "dict"), batch_frames=200
    )
    said = {
        split: [" ".join(u.units) for u in data.utterances(split)]
        for split in ("train", "val", "test")
    }
    hello, dog = "HH AH L OW", "D AO G"
    assert said == {
        "train": [f"{hello} {dog}", f"{hello} K AA M AH D AH B AH L K W OW T {dog}"],
        "val": [f"{dog} {hello}"],
        "test": [f"{dog} P IH R IY AH D"],
    }


def test_the_discs_of_the_ldc_may_be_links(tmp_path):
    """As a recipe of Kaldi leaves them."""
    write_wsj(tmp_path / "discs", discs=True)
    (tmp_path / "links").mkdir()
    for disc in (tmp_path / "discs").glob("1*"):
        (tmp_path / "links" / disc.name).symlink_to(disc)
    data = WallStreetJournal(str(tmp_path), path=f"{tmp_path}/links", labels="characters")
    assert len(data.utterances("train")) == 3


def test_detailed_transcripts_become_words():
    for written, said in {
        "THE [door_slam] *CAT* SAT .": "THE CAT SAT",
        ",COMMA .PERIOD -HYPHEN %PERCENT": "COMMA PERIOD HYPHEN PERCENT",
        "A:LL !NOT (B)UT `SO~": "ALL NOT BUT SO",
        "[music/] MR. SMITH'S [/music]": "MR SMITH'S",
        "HE WEN- WENT": "HE WEN- WENT",
        "HE <and> WENT [<cough] HOME": "HE and WENT HOME",
    }.items():
        assert spoken_words(written) == said


def test_compressed_sphere_files_go_through_sph2pipe(tmp_path, monkeypatch, raises_one_line):
    path = tmp_path / "a.wv1"
    path.write_bytes(
        b"NIST_1A\n   1024\nsample_coding -s26 pcm,embedded-shorten-v2.00\n" + bytes(2000)
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with raises_one_line("a.wv1", "shorten", "sph2pipe"):
        read_audio(path, RATE)
    soundfile.write(tmp_path / "whole.wav", noise(0.5), RATE)
    program = tmp_path / "bin/sph2pipe"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$3" = "{path}" ] && exec /bin/cat "{tmp_path}/whole.wav"\n')
    program.chmod(0o755)
    assert len(read_audio(path, RATE)) == RATE // 2


def test_the_spoken_corpus_is_a_function_of_its_numbers(tmp_path):
    """In processes that said other things before."""
    speak("something else", voice="en-us+klatt", words_per_minute=150, pitch=30)
    sizes = {"num_train": 6, "num_val": 2, "num_test": 2}
    first, second, other = (
        EspeakSpeech(str(tmp_path / name), corpus_seed=seed, **sizes)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    for split, size in (("train", 6), ("val", 2), ("test", 2)):
        files = [data.utterances(split) for data in (first, second, other)]
        assert len(files[0]) == size
        ours, theirs, others = ([u.audio.read_bytes() for u in part] for part in files)
        assert ours == theirs
        assert ours != others
        assert {u.speaker for u in files[0]} <= set(VOICES[split])
    assert not list(tmp_path.rglob(".*.part"))


def test_no_voice_is_in_two_splits():
    voices = [voice for split in VOICES.values() for voice in split]
    assert len(voices) == len(set(voices))


def test_sentences_have_every_phone():
    random = np.random.default_rng(0)
    said: set[str] = set()
    for _ in range(150):
        spoken = speak(sentence(random), voice="en-us", words_per_minute=180, pitch=50)
        said.update(spoken.phones)
        assert list(spoken.starts) == sorted(spoken.starts)
        assert 0 <= spoken.starts[0] <= spoken.starts[-1] < len(spoken.samples) / 22050
    assert said == set(PHONES)
    assert {phone for phones in ARPABET.values() for phone in phones.split()} == set(PHONES)
