"""What a benchmark cannot do is said in one line, and nothing is written."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import (
    ablation,
    compression,
    context,
    costs,
    curves,
    decoding,
    export,
    fast_weights,
    figures,
    gallery,
    hearing,
    maps,
    operators,
    peers,
    pieces,
    positions,
    precision,
    report,
    sampling,
    scaling,
    startup,
    training,
    translation,
)
from linear_transformers.tasks.loading import usable
from tests.programs import QUICK, run

pytestmark = pytest.mark.usefixtures("results")


def refused(program, monkeypatch, *words: str) -> str:
    """Call a program, and return the line with which it ends."""
    monkeypatch.setattr(sys, "argv", [program.__name__, *words])
    with pytest.raises(SystemExit) as told:
        program.main()
    line = str(told.value)
    assert line.startswith("error: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("program", [context, export, hearing, precision, translation])
def test_a_run_that_is_not_there(program, monkeypatch, tmp_path, results):
    line = refused(program, monkeypatch, "nowhere", "--runs", str(tmp_path))
    assert "nowhere is neither a run nor a checkpoint file" in line
    assert not results.exists()


def test_a_model_of_another_kind(monkeypatch, tmp_path):
    run("train", *QUICK, f"paths.runs={tmp_path}", "run_id=image", "test=false")
    for program in (context, hearing, translation):
        line = refused(program, monkeypatch, "image", "--runs", str(tmp_path))
        assert "is not a model of" in line


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        (costs, ["digits", "--overrides", "model.dropuot=1"], "model.dropuot is not a key of mod"),
        (compression, ["data=txet"], "data=txet is not a choice. Did you mean text?"),
        (compression, ["data=text", "data.path=gone"], "data.path=gone names no text"),
        (pieces, ["split", "gone.ckpt", "folder"], "gone.ckpt does not exist"),
    ],
)
def test_what_cannot_be_read(program, words, said, monkeypatch):
    assert said in refused(program, monkeypatch, *words)


@pytest.mark.parametrize("program", [ablation, costs, curves, gallery])
def test_a_variant_that_is_not_in_the_plan(program, monkeypatch):
    line = refused(program, monkeypatch, "digits", "--variants", "linear", "linnear")
    assert line.startswith("error: linnear is no variant. Choose of ['linear', ")


@pytest.mark.parametrize("program", [positions, sampling, training])
def test_nothing_is_replaced_where_no_method_can_run(program, monkeypatch, results, capsys):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    words = ("--methods", "fast-transformers", "--device=cpu", "--threads=1")
    assert "no method can run here" in refused(program, monkeypatch, *words)
    assert "pytorch-fast-transformers is not installed" in capsys.readouterr().out
    assert not results.exists()


@pytest.mark.parametrize(
    ("program", "words"),
    [(operators, ["--shapes", "16"]), (fast_weights, ["--shape", "16x"])],
)
def test_a_shape_is_a_batch_and_a_length(program, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program.__name__, *words])
    with pytest.raises(SystemExit):
        program.main()
    assert f"{words[0]}: '{words[1]}' is not BATCHxLENGTH" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        (costs, ["digits", "--rounds", "0"], "--rounds: 0 is less than 1"),
        (startup, ["--rounds", "-1"], "--rounds: -1 is less than 1"),
        (context, ["run", "--documents", "-1"], "--documents: -1 is less than 1"),
        (decoding, ["--length", "64", "0"], "--length: 0 is less than 1"),
        (fast_weights, ["--heads", "0"], "--heads: 0 is less than 1"),
        (hearing, ["run", "--recordings", "-1"], "--recordings: -1 is less than 1"),
        (operators, ["--head-dim", "0"], "--head-dim: 0 is less than 1"),
        (sampling, ["--positions", "0"], "--positions: 0 is less than 1"),
        (scaling, ["--heads", "-8"], "--heads: -8 is less than 1"),
        (ablation, ["digits", "--cores", "0", "9999"], "--cores: there is no core 9999: this mac"),
        (
            operators,
            ["--device", "nonesuch"],
            "--device: --device=nonesuch cannot be used (there are cpu, cuda,",
        ),
        (training, ["--device", "cuda:99"], "--device: --device=cuda:99 cannot be used ("),
    ],
)
def test_what_this_machine_cannot_do_is_said_before_anything_is_timed(
    program, words, said, monkeypatch, results, capsys
):
    monkeypatch.setattr(sys, "argv", [program.__name__, *words])
    with pytest.raises(SystemExit):
        program.main()
    assert f"error: argument {said}" in capsys.readouterr().err
    assert not results.exists()


@pytest.mark.parametrize("program", [operators, scaling, training])
def test_a_device_chosen_automatically_is_one_of_this_machine(program, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program.__name__, "--device", "auto"])
    assert program.parse().device == usable("auto", "--device").type


@pytest.mark.parametrize("program", [ablation, curves, maps, report])
def test_a_measurement_that_is_torn(program, monkeypatch, results):
    """By a merge, or an editor: the programs write whole files."""
    results.mkdir()
    path = results / "ablation-maps-digits.json"
    path.write_text('{"title": "a", "sources": [{"var')
    words = ["maps-digits"] if program in (ablation, curves) else []
    line = refused(program, monkeypatch, *words)
    assert f"{path} cannot be read (" in line
    assert [file.name for file in results.parent.rglob("*") if file.is_file()] == [path.name]


@pytest.mark.parametrize(("program", "words"), [(ablation, ["digits"]), (startup, [])])
def test_results_that_could_not_be_written_are_refused_first(program, words, monkeypatch, results):
    results.write_text("a file, where a folder is to be")
    line = refused(program, monkeypatch, *words)
    assert f"{results}/" in line
    assert "cannot be written" in line
    assert "RESULTS=FOLDER" in line


def test_two_models_of_one_name(monkeypatch, results):
    """Of two seeds, one would stand for both."""
    stack = SimpleNamespace(mixer_name="linear")
    model = SimpleNamespace(
        path=Path("a/last.ckpt"), task=SimpleNamespace(model=SimpleNamespace(stack=stack))
    )
    monkeypatch.setattr(context, "trained_models", lambda names, *_: [model for _ in names])
    monkeypatch.setattr(context, "source_of", lambda folder: {"seed": 0})
    for words in (("a", "b"), ("x=a", "linear=b", "c")):
        line = refused(context, monkeypatch, *words)
        assert line == "error: linear is the name of two runs. Give NAME=RUN, for each another."
    assert not results.exists()


@pytest.mark.parametrize("program", [figures, maps, report])
def test_help_writes_nothing(program, monkeypatch, results, capsys):
    monkeypatch.setattr(sys, "argv", [program.__name__, "--help"])
    with pytest.raises(SystemExit):
        program.main()
    assert capsys.readouterr().out.startswith("usage: ")
    assert not results.exists()


def test_what_the_page_needs_is_asked_for_first(monkeypatch, results):
    """It is timed last, after minutes."""
    monkeypatch.setenv("PATH", "")
    assert "node is not installed" in refused(export, monkeypatch, "pretrained/digits")
    assert not results.exists()
