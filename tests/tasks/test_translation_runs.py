"""A translator is trained, tested, continued, and translates lines as they come."""

import gzip
import io
import re
import signal
import subprocess
import sys

import pytest
import torch

import linear_transformers as lt
from linear_transformers.tasks.translation import translating
from linear_transformers.tasks.translation.judging import judged
from tests.conftest import PROJECT
from tests.programs import check_same_bits, complaint, figures, run, start

TINY = (
    "data=transduction", "data.function=copy", "data.max_length=6", "data.num_train=60",
    "data.num_held_out=12", "data.batch_tokens=100", "trainer=cpu", "logger=none",
    "trainer.max_epochs=2", "model.num_layers=1", "model.num_heads=2", "model.model_dim=16",
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("no_interpreter")
CHOICES = [
    ("model=linear",),
    ("model=softmax", "task/cross=linear"),
    ("model=gated_delta", "task/encoder=softmax", "task/cross=softmax"),
    ("model=linear", "task/encoder=linear", "data.tokens=bytes"),
    ("model=hybrid", "model.num_layers=2", "model.local.attention.window=3"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, no_interpreter):
    folder = tmp_path_factory.mktemp("runs")
    run("train", *TINY, f"paths.runs={folder}", "run_id=tiny", "model=linear")
    return folder


@pytest.mark.parametrize("arguments", CHOICES, ids=" ".join)
def test_attention_is_chosen_for_each_place(tmp_path, arguments):
    printed = run("train", *TINY, *arguments, f"paths.runs={tmp_path}", "run_id=one")
    assert "exact match" in printed
    (found,) = figures(tmp_path / "one", "test/exact_match")
    assert 0 <= found <= 1


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path):
    """With dropout in both stacks, whose masks are drawn anew."""
    part = (*TINY, "model=linear", "model.dropout=0.2", "scheduler=constant", "test=false")
    run("train", *part, f"paths.runs={tmp_path}", "run_id=whole")
    run("train", *part, f"paths.runs={tmp_path}", "run_id=parts", "trainer.max_epochs=1")
    run("train", *part, f"paths.runs={tmp_path}", "run_id=parts", "resume=auto")
    assert check_same_bits(tmp_path / "parts", tmp_path / "whole")["global_step"] > 0


def test_lines_of_a_file_are_translated_in_their_order(runs, tmp_path, capsys):
    text = tmp_path / "lines.txt"
    text.write_bytes(b"abc\r\nzz\n\nabc")
    call = ("translate", f"paths.runs={runs}", "ckpt=tiny", f"text={text}")
    lines = run(*call, "batch=2").splitlines()
    assert len(lines) == 4
    assert lines[0] == lines[3]
    model = lt.load("tiny", runs=runs)
    assert lines == [best.text for best, *_ in model.translate(["abc", "zz", "", "abc"])]
    scored = run(*call, "n=3", "scores=true", "beam=4").splitlines()
    assert len(scored) == 12
    values = [float(line.split("\t")[0]) for line in scored[:3]]
    assert values == sorted(values, reverse=True)


def test_a_line_is_written_as_texts_are(runs, tmp_path, monkeypatch, capsys):
    """See `pictures.texts`."""
    written = []
    monkeypatch.setattr(translating, "write", written.append)
    (tmp_path / "line.txt").write_text("abc\n")
    run("translate", f"paths.runs={runs}", "ckpt=tiny", f"text={tmp_path}/line.txt")
    (line,) = written
    assert line.endswith("\n")
    assert "1 line in" in capsys.readouterr().err


def test_lines_are_judged_by_their_references(runs, tmp_path, capsys):
    text, references = tmp_path / "lines.txt.gz", tmp_path / "references.txt"
    text.write_bytes(gzip.compress(b"abc\nzz\n"))
    references.write_text("abc\nzz\n")
    call = ("translate", f"paths.runs={runs}", "ckpt=tiny", f"text={text}")
    found = run(*call, f"references={references}").splitlines()
    scores = judged(found, ["abc", "zz"])
    printed = capsys.readouterr().err
    for name, value, signature in scores:
        assert f"{name} {value:.2f}  {signature}" in printed
    references.write_text("abc\n")
    message = complaint(*call, f"references={references}")
    assert f"{references} has 1 lines, and text={text} 2." in message


def test_draws_depend_on_the_seed_and_the_lines_number(runs, tmp_path):
    text = tmp_path / "lines.txt"
    text.write_text("abc\nabc\nabc\n")
    call = ("translate", f"paths.runs={runs}", "ckpt=tiny", f"text={text}", "temperature=1.5")
    found = run(*call, "n=2").splitlines()
    assert len(found) == 6
    assert len({*found}) > 1
    assert run(*call, "n=2", "batch=2").splitlines() == found
    assert run(*call, "n=2", "seed=1").splitlines() != found
    model = lt.load("tiny", runs=runs)
    drawn = model.draw(["abc"], n=2, temperature=1.5, first=1)
    assert found[2:4] == [each.text for each in drawn[0]]


@pytest.fixture
def piped(runs):
    """A program that translates what is written to it."""
    words = (f"paths.runs={runs}", "ckpt=tiny", "text=-")
    with start("translate", *words, stdin=subprocess.PIPE, text=False) as process:
        yield process


def test_standard_input_is_translated_as_it_comes(piped):
    """The first line's translation is there before the second line is."""
    for _ in range(2):
        piped.stdin.write(b"abc\n")
        piped.stdin.flush()
        assert piped.stdout.readline().endswith(b"\n")
    piped.stdin.close()
    assert piped.wait() == 0


def test_a_reader_that_has_enough_ends_it_without_a_word(piped):
    """As `| head -1` does."""
    piped.stdin.write(b"abc\n")
    piped.stdin.flush()
    assert piped.stdout.readline()
    piped.stdout.close()
    piped.stdin.write(b"abc\n")
    piped.stdin.close()
    assert piped.wait() == 128 + signal.SIGPIPE
    assert b"Error" not in piped.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["text=none.txt"], "text=none.txt does not exist."),
        (["text=BAD"], "line 2: byte 2 is not UTF-8."),
        (["text=NEW"], "Character 2 of 'bÉ', 'É', was in no text that this model was trained on."),
        (["text=NEW", "temperature=1"], "Character 2 of 'bÉ', 'É', was in no text"),
        (["text=NEW"], "NEW, line 2: Character 2"),
        (["text=-", "n=6", "beam=5"], "n=6 exceeds beam=5. Use beam=6."),
        (["text=-", "temperature=1", "beam=5"], "beam=5 applies to beam search only"),
        (["text=-", "temperature=1", "length_penalty=1"], "length_penalty=1.0 applies to beam"),
        (["text=-", "top_p=0.5"], "top_p=0.5 applies to sampling only. Give temperature=1"),
        (["text=-", "beam=0"], "beam"),
        (["text=NEW", "length_penalty=1000"], "length_penalty=1000: it must be at most 50."),
    ],
)
def test_what_cannot_be_translated_is_refused(runs, tmp_path, monkeypatch, arguments, words):
    (tmp_path / "BAD").write_bytes(b"a\nb\xff\n")
    (tmp_path / "NEW").write_text("a\nb\u00c9\n")
    arguments = [re.sub("text=(BAD|NEW)", rf"text={tmp_path}/\1", each) for each in arguments]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert words in complaint("translate", f"paths.runs={runs}", "ckpt=tiny", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model=gated"], "Use task/cross=linear or task/cross=softmax."),
        (["model=gated", "task/cross=linear"], "task/encoder=linear or task/encoder=softmax."),
        (["model=sparse", "task/cross=linear"], "SparseAttention has no bidirectional form"),
        (
            ["model=lsh1"],
            "LshAttention cannot attend to another sequence. Use linear or softmax attention "
            "there: task/cross=linear or task/cross=softmax.",
        ),
        (["model=bilstm"], "is no transformer, and cannot attend to a source."),
        (
            ["model=bilstm", "task/encoder=softmax"],
            "task.encoder.num_heads: Interpolation key 'model.num_heads' not found. Give it a "
            "value, or make another choice.",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path, arguments, words):
    arguments = [*TINY[:8], *arguments, f"paths.runs={tmp_path}"]
    assert words in complaint("train", *arguments)


def test_another_vocabulary_is_refused_in_a_short_line(runs):
    """Not with all of it, which may be a megabyte."""
    arguments = (*TINY, f"paths.runs={runs}", "resume=tiny", "model=linear", "data.tokens=bpe")
    message = complaint("train", *arguments)
    assert "was made for data of tokens='characters', vocabulary='abc" in message
    assert len(message) < 800


def test_whoever_tunes_a_translator_is_told_that_its_tokens_are_others(runs, tmp_path):
    """All weights fit where there are as many."""
    pairs = lt.data.Transductions(
        function="copy", max_length=6, num_train=60, num_held_out=12
    ).pairs("train")
    lines = "".join(f"{a.upper()}\t{b.upper()}\n" for a, b in pairs)
    (tmp_path / "own.tsv").write_text(lines)
    files = [f"data.{split}={tmp_path}/own.tsv" for split in ("train", "val", "test")]
    words = (*TINY[-5:], "debug=step", f"paths.runs={runs}", "init_from=tiny")
    own = ("data=pairs", *files, "data.tokens=characters", "data.batch_tokens=100")
    told = re.search(
        r"(\d+) of \1 tensors .*; of data with another (.*)", run("train", *own, *words)
    )
    assert told[2] == "vocabulary"
    assert "of data with" not in run("train", *TINY, *words)


def test_multi30k_is_learnt_in_subwords_that_are_saved(tmp_path):
    """With the texts gone, a checkpoint knows its subwords."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, count in (("train", 40), ("val", 5), ("test_2016_flickr", 7)):
        for language, text in (("en", "Two dogs run."), ("de", "Zwei Hunde laufen.")):
            lines = "".join(f"{text} {i}\n" for i in range(count))
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    options = [word for word in TINY if not word.startswith("data")]
    run(
        "train", "data=multi30k", f"data.path={folder}", *options, f"paths.runs={tmp_path}",
        "run_id=m", "model=linear", "model.activation=gelu", "data.batch_tokens=100",
    )  # fmt: skip
    for file in folder.iterdir():
        file.unlink()
    for name in ("BLEU", "BLEU_lower_case", "chrF"):
        (figure,) = figures(tmp_path / "m", f"test/{name}")
        assert 0 <= figure <= 100
    assert (tmp_path / "m/samples/test/attention.png").is_file()
    model = lt.load("m", runs=tmp_path)
    assert model.task.shape.tokenizer.noun == "subwords"
    assert isinstance(model.task.model.encoder.blocks[0].feedforward[1], torch.nn.GELU)
    (found,) = model.translate(["Two dogs run. 3"])
    assert len(found) == 5


def test_texts_may_be_any_iterable_and_of_spaces_alone(runs):
    model, texts = lt.load("tiny", runs=runs), ["a", "b", "\t", "\u3000", ""]
    expected = model.translate(texts)
    assert model.translate(iter(texts)) == expected
    assert [found[0].text for found in expected[2:]] == ["", "", ""]
    assert model.draw(iter(texts)) == model.draw(texts)


@pytest.mark.parametrize("closed", ["<", ">"])
def test_a_stream_that_the_shell_has_closed_is_an_empty_one(runs, tmp_path, closed):
    (tmp_path / "lines.txt").write_text("abc\n")
    text = "-" if closed == "<" else tmp_path / "lines.txt"
    call = [sys.executable, PROJECT / "translate.py", f"paths.runs={runs}", "ckpt=tiny"]
    shell = ["sh", "-c", f'"$@" {closed}&-', "sh", *call, f"text={text}"]
    done = subprocess.run(shell, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("0 lines in" if closed == "<" else "1 line in") in done.stderr
