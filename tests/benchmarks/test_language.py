"""What is measured of language models is what the words say."""

import argparse
import json
import math
import sys

import pytest
import torch

import linear_transformers as lt
from benchmarks import context, generation, record, shakespeare
from tests.conftest import TINY
from tests.programs import run

TEXT = "".join(f"{i}: what is past is prologue\n" for i in range(900))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text").write_text(TEXT)
    run(
        "train", *TINY, "data=text", f"data.path={folder}/text", "data.segment=32", "test=false",
        "data.batch_size=4", "trainer=cpu", "trainer.max_steps=3", "trainer.val_check_interval=3",
        "data.tokens=characters", f"paths.runs={folder}", "run_id=a",
    )  # fmt: skip
    return lt.load("a", runs=folder)


def test_windows_are_all_of_a_text_and_what_follows_each(model):
    values = model.tokens(TEXT[: 3 * 64 + 1])
    (found,) = shakespeare.windows(values)
    assert [part.shape for part in found] == [(3, 64)] * 2
    assert torch.equal(found[0].flatten(), values[:-1])
    assert torch.equal(found[1].flatten(), values[1:])


def test_nats_of_windows_are_those_of_each_on_its_own(model):
    text = TEXT[: 2 * 64 + 1]
    alone = [model.nats(model.tokens(text[i * 64 : i * 64 + 65]))[1:] for i in range(2)]
    expected = torch.cat(alone).double().mean().item()
    assert shakespeare.nats_of_windows(model, text) == pytest.approx(expected, rel=1e-5)


def test_bits_by_place_are_of_the_bytes_between_two_places(model, monkeypatch):
    monkeypatch.setattr(context, "PLACES", [16, 64, 10**6])
    found = context.by_place(model, 3)
    documents = model.data().documents("test")  # one
    bits = model.nats(torch.from_numpy(documents.tokens[:64].astype("int64"))) / math.log(2)
    assert found == {
        16: pytest.approx(bits[:16].mean().item(), rel=1e-5),
        64: pytest.approx(bits[16:].mean().item(), rel=1e-5),
    }


@pytest.mark.parametrize("method", generation.METHODS)
def test_generation_is_measured_in_equal_parts(method, monkeypatch, capsys):
    monkeypatch.setattr(generation, "ROWS", 3)
    generation.measure(method, argparse.Namespace(tokens=12, seconds=60))
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["tokens"] for row in rows] == [4, 8, 12]
    assert all(row["tokens_per_second"] > 0 and row["resident_megabytes"] > 10 for row in rows)
    grows = len({row["state_kilobytes"] for row in rows}) > 1
    assert grows == (method == "softmax")


def test_fewer_tokens_than_rows_have_a_row_each(capsys):
    generation.measure("linear", argparse.Namespace(tokens=2, seconds=60))
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["tokens"] for row in rows] == [1, 2]


def test_a_method_that_takes_too_long_has_fewer_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    words = ["generation", "--methods", "linear", "--tokens", "200", "--seconds", "0"]
    monkeypatch.setattr(sys, "argv", words)
    generation.main()
    (row,) = json.loads((tmp_path / "generation-cpu.json").read_text())["rows"]
    assert row["tokens"] == 10
    assert (tmp_path / "generation-cpu.png").is_file()
