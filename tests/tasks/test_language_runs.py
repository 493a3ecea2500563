"""A model of texts is trained, tested, continued, and goes on with what one types."""

import io
import json
import math
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch

import linear_transformers as lt
from linear_transformers.runs.checkpoint import read_checkpoint
from tests.conftest import TINY
from tests.faults.test_stopping import signal_at
from tests.programs import check_same_bits, complaint, figures, join, run, start

LINES = [f"def f{i}(x): return {{'ä': x + {i}}}  # 🎈\n" for i in range(400)]
SMALL = (
    *TINY, "data=text", "data.segment=32", "data.batch_size=4", "trainer=cpu", "model=linear_conv",
    "trainer.max_steps=-1", "trainer.max_epochs=1", "trainer.val_check_interval=1.0",
    "trainer.check_val_every_n_epoch=1", "trainer.limit_train_batches=20",
)  # fmt: skip
pytestmark = pytest.mark.usefixtures("no_interpreter")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "one.txt"
    path.write_text("".join(LINES))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory, text, no_interpreter):
    folder = tmp_path_factory.mktemp("runs")
    for name, *more in (
        ("bytes",),
        ("characters", "data.tokens=characters"),
        ("softmax", "model=softmax", "model.positions=learned"),
    ):
        run("train", *SMALL, f"data.path={text}", f"paths.runs={folder}", f"run_id={name}", *more)
    return folder


def sampled(runs, name, *words) -> tuple[str, dict]:
    """What sample.py prints, and its record."""
    out = runs / name / "samples" / f"test-{time.monotonic_ns()}"
    printed = run("sample", f"ckpt={name}", f"paths.runs={runs}", f"out={out}", *words)
    return printed, json.loads((out / "samples.json").read_text())


# Training.


@pytest.mark.parametrize(
    "words",
    [
        ("data.tokens=bpe", "data.vocabulary_size=300"),
        ("data.carry_state=true",),
        ("model=gated_delta", "data.carry_state=true", "data.tokens=characters"),
        ("model=softmax", "model.positions=added"),
    ],
    ids=" ".join,
)
def test_texts_are_trained_on(tmp_path, text, words):
    printed = run(
        "train", *SMALL, f"data.path={text}", *words, f"paths.runs={tmp_path}", "run_id=a"
    )
    assert "xz -9e" in printed
    (bits,) = figures(tmp_path / "a", "test/bits_per_byte")
    (perplexity,) = figures(tmp_path / "a", "test/perplexity")
    assert 0 < bits < 8
    assert perplexity > 1
    assert [*(tmp_path / "a/samples/test").glob("drawn.txt")]


def test_the_standard_library_is_trained_on(tmp_path):
    words = (*TINY, "data=python", "trainer=cpu", "debug=step", "data.batch_size=2", "test=false")
    assert "the standard library of Python" in run("train", *words, f"paths.runs={tmp_path}")


@pytest.mark.parametrize("carry_state", ["false", "true"])
def test_a_run_that_was_stopped_within_an_epoch_goes_on_exactly(tmp_path, text, carry_state):
    """With the state that the segments before have left, and dropout."""
    words = (
        *SMALL, f"data.path={text}", f"data.carry_state={carry_state}", "model.dropout=0.2",
        "scheduler=constant", "test=false", f"paths.runs={tmp_path}", "trainer.max_epochs=2",
    )  # fmt: skip
    run("train", *words, "run_id=whole")
    with pytest.raises(SystemExit):
        run("train", *words, "run_id=parts", *signal_at("train_batch_end", 7))
    assert read_checkpoint(tmp_path / "parts/checkpoints/last.ckpt")["global_step"] == 7
    run("train", *words, "run_id=parts", "resume=auto")
    parts = check_same_bits(tmp_path / "parts", tmp_path / "whole")
    assert parts["global_step"] > 7
    assert ("carried" in parts) == (carry_state == "true")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model=softmax",), "SoftmaxAttention grows with them. Use a model of constant state"),
        (("model.positions=added",), "Use model.positions=none."),
        (("data.path=/nowhere/*.txt",), "data.path=/nowhere/*.txt does not exist."),
        (("data.tokens=words",), "data.tokens=words is unknown. Choose one of ['bpe', 'bytes'"),
        (("data.segment=9000",), "do not fill one batch of 4 segments of 9000"),
        (("task/distribution=logistic_mixture",), "use task/distribution=categorical"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_and_leaves_no_run(tmp_path, text, words, message):
    told = (*SMALL, f"data.path={text}", "data.carry_state=true", *words, f"paths.runs={tmp_path}")
    assert message in complaint("train", *told)
    assert not [*tmp_path.glob("*/checkpoints")]


# Sampling.


def test_a_text_goes_on_with_a_prompt_as_it_was_typed(runs):
    prompt = "def f(${x}, [a=1, {b: 'c'}]) -> \"d\\\\' # ä\n"
    printed, record = sampled(runs, "bytes", f"prompt={prompt}", "length=40", "check=true")
    assert prompt in printed
    (row,) = record["texts"]
    assert printed.split(prompt, 1)[1] == row["text"] + "\n"
    assert record["prompt"] == prompt
    assert record["tokens"] == 40
    assert record["step_against_forward"] < 1e-3
    assert record["seed"] == 0
    assert record["config"]["data"]["segment"] == 32


@pytest.mark.parametrize("prompt", ["", "null", "1e5", "a,b", "@", "x=-"])
def test_any_word_is_a_prompt(runs, tmp_path, prompt):
    if prompt == "@":  # of a file
        (tmp_path / "a prompt").write_text("from a file")
        given, expected = f"@{tmp_path}/a prompt", "from a file"
    else:
        given = expected = prompt
    _, record = sampled(runs, "bytes", f"prompt={given}", "length=3")
    assert record["prompt"] == expected


def test_a_prompt_is_read_from_standard_input(runs, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped in\n")))
    printed, record = sampled(runs, "bytes", "prompt=-", "length=3")
    assert printed.startswith("piped in\n")
    assert record["prompt"] == "piped in\n"


def test_several_texts_have_files_of_their_own(runs):
    printed, record = sampled(
        runs, "characters", "prompt=def", "n=3", "length=60", "temperature=0.8", "top_p=0.95",
        "stop=[return,'  #']", "seed=2",
    )  # fmt: skip
    assert len(record["texts"]) == 3
    for i, row in enumerate(record["texts"]):
        folder = max((runs / "characters/samples").glob("test-*"))
        assert (folder / row["file"]).read_text() == "def" + row["text"]
        assert f"--- {i}\ndef{row['text']}" in printed
        assert "return" not in row["text"]
    model = lt.load("characters", runs=runs)
    options = {"temperature": 0.8, "top_p": 0.95, "stop": ["return", "  #"], "seed": 2}
    again = model.generate("def", n=3, length=60, **options)
    assert again == [row["text"] for row in record["texts"]]


def test_tokens_after_the_end_of_a_text_are_not_counted(runs):
    words = ("n=4", "end=false", "stop=e", "length=100", "seed=2")
    _, record = sampled(runs, "bytes", *words)
    drawn = lt.load("bytes", runs=runs).continuations(n=4, end=False, stop="e", seed=2)
    *steps, (_, texts) = islice(drawn, 100)
    assert record["tokens"] == sum(text.tokens for text in texts) < 4 * (len(steps) + 1)
    timed = record["milliseconds_per_step"] * len(steps) / 1000
    assert record["tokens_per_second"] == pytest.approx((record["tokens"] - 4) / timed, rel=0.02)


def test_steppers_draw_the_same_text(runs):
    drawn = [
        sampled(runs, "bytes", "prompt=def", "length=50", f"stepper={stepper}")[1]["texts"]
        for stepper in ("recurrent", "compiled", "recomputed")
    ]
    assert drawn[0] == drawn[1] == drawn[2]


def test_weights_can_be_rounded(runs):
    _, record = sampled(runs, "bytes", "prompt=def", "length=10", "precision=int8")
    assert "int8" in json.dumps(record["precision"])


@pytest.mark.parametrize("n", [1, 2])
def test_control_characters_are_shown_on_a_terminal_and_written_as_they_are(runs, tmp_path, n):
    pty = pytest.importorskip("pty")
    prompt, shown = "a\x1b[2Jb\r\tc\nd", b"a\\x1b[2Jb\\r"
    (tmp_path / "prompt").write_bytes(prompt.encode())
    words = [f"paths.runs={runs}", "ckpt=bytes", f"prompt=@{tmp_path}/prompt", "length=3"]
    terminal, end = pty.openpty()
    process = start("sample", *words, f"n={n}", f"out={tmp_path}/out", stdout=end)
    os.close(end)
    printed = b""
    with suppress(OSError):  # a terminal's end, on Linux
        while part := os.read(terminal, 1024):
            printed += part
    os.close(terminal)
    assert join([process])
    assert shown in printed
    assert b"\x1b[2J" not in printed
    assert (tmp_path / "out/0000.txt").read_bytes().startswith(prompt.encode())


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("characters", ("prompt=déf",), "Character 2 of the prompt, 'é', was in no text that"),
        ("bytes", ("prompt=a\udcff",), "Character 2 of the prompt is half of one"),
        ("bytes", ("prompt=@/nowhere",), "/nowhere cannot be read (No such file or directory)."),
        ("bytes", ("length=0",), "length"),
        ("bytes", ("stop=",), "stop='' is in every text"),
        ("bytes", ("temperature=1e-320",), "temperature=1e-320"),
        ("bytes", ("out=/proc/no",), "The folder out=/proc/no cannot be made"),
        ("softmax", ("prompt=" + 40 * "x", "length=1"), "positions for 32, its start among them"),
        ("softmax", ("prompt=" + 31 * "x", "length=1"), "Give a prompt of 30 bytes or less."),
        ("softmax", ("length=40",), "Give length=31 or less."),
    ],
)
def test_prompts_that_do_not_fit_are_refused_in_one_line(runs, name, words, message):
    before = [*(runs / name).glob("samples/*")]
    assert message in complaint("sample", f"ckpt={name}", f"paths.runs={runs}", *words)
    assert [*(runs / name).glob("samples/*")] == before


def test_texts_beyond_the_positions_are_refused_before_any_is_drawn(runs, raises_one_line):
    with raises_one_line("length=500 were asked for", "Give length=31 or less."):
        lt.load("softmax", runs=runs).generate("")


def test_a_prompt_of_another_encoding_is_refused(runs, tmp_path):
    (tmp_path / "latin").write_bytes("ä".encode("latin-1"))
    words = (f"ckpt=bytes paths.runs={runs} prompt=@{tmp_path}/latin").split()
    assert "is not UTF-8: byte 1." in complaint("sample", *words)


def test_softmax_is_said_to_get_worse_beyond_what_it_was_trained_on(runs, capsys, tmp_path, text):
    run(
        "train", *SMALL, f"data.path={text}", f"paths.runs={tmp_path}", "run_id=a", "model=softmax",
        "model.positions=added", "test=false",
    )  # fmt: skip
    sampled(tmp_path, "a", "length=20")
    assert "caution" not in capsys.readouterr().err
    sampled(tmp_path, "a", "length=40")
    assert "was trained on 32 bytes at a time" in capsys.readouterr().err


def test_without_end_until_it_is_stopped(runs, tmp_path):
    """What was drawn until then is kept, to the last character."""
    words = [f"paths.runs={runs}", "ckpt=bytes", "prompt=def", "length=null", "end=false"]
    process = start("sample", *words, f"out={tmp_path}/out", text=False, bufsize=0)
    # Byte by byte: what a buffer has read ahead, communicate() does not see.
    shown = b"".join(process.stdout.read(1) for _ in range(2000))
    process.send_signal(signal.SIGTERM)  # a shell may have us ignore Ctrl-C in the background
    rest, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    record = json.loads((tmp_path / "out/samples.json").read_text())
    (row,) = record["texts"]
    assert (shown + rest).decode(errors="replace") == "def" + row["text"] + "\n"
    assert (tmp_path / "out/0000.txt").read_bytes().decode() == "def" + row["text"]
    assert row["ending"] == "stopped"
    assert f"kept     {record['tokens']} tokens\n" in said.decode()


def test_a_reader_that_has_read_enough_loses_nothing(runs, tmp_path):
    """As `| head` has."""
    words = [f"paths.runs={runs}", "ckpt=bytes", "prompt=def", "length=null", "end=false"]
    with (tmp_path / "err").open("wb") as errors:
        process = start("sample", *words, f"out={tmp_path}/out", stderr=errors)
        process.stdout.read(100)
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
    (row,) = json.loads((tmp_path / "out/samples.json").read_text())["texts"]
    assert (tmp_path / "out/0000.txt").read_bytes().decode() == "def" + row["text"]
    assert row["ending"] == "stopped"
    assert "Traceback" not in (tmp_path / "err").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_told(runs, tmp_path):
    words = [f"paths.runs={runs}", "ckpt=bytes", "prompt=def", f"out={tmp_path}/out"]
    with Path("/dev/full").open("w") as full:
        process = start("sample", *words, stdout=full)
        _, errors = process.communicate()
    assert process.returncode == 1
    said = errors.splitlines()[-1]
    assert said.startswith("error: ")
    assert said.endswith("Or what is printed goes to a full disk.")


def test_more_texts_than_there_may_be_open_files_are_told(runs, tmp_path):
    resource = pytest.importorskip("resource")
    words = [f"paths.runs={runs}", "ckpt=bytes", "n=100", "length=2", f"out={tmp_path}/out"]
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
    _, errors = start("sample", *words, preexec_fn=few).communicate()
    assert errors.splitlines()[-1].endswith(".txt: Too many open files.")


# From Python.


def test_bits_per_byte_are_those_of_the_whole_text(runs, monkeypatch):
    from linear_transformers.tasks.language_modeling import model as language_model

    model = lt.load("bytes", runs=runs)
    text = "".join(LINES[:3])
    values = model.tokens(text).unsqueeze(0)
    network = model.task.model
    with torch.no_grad():
        parameters = network(network.with_start(values)[:, :-1])
        nats = -model.task.distribution.log_prob(parameters, values).double().sum().item()
    expected = nats / math.log(2) / len(text.encode())
    assert model.bits_per_byte(text) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(language_model, "READ", 10)
    assert model.bits_per_byte(text) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="An empty text"):
        model.bits_per_byte("")
    network.train()
    with pytest.raises(ValueError, match=r"train\(\) mode"):
        model.bits_per_byte(text)
