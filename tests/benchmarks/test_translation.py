"""The benchmark of translation judges what a trained model makes of a test set."""

import json
import sys
from types import SimpleNamespace

import pytest

import linear_transformers as lt
from benchmarks import record, translation
from linear_transformers.tasks.translation.judging import judged
from tests.programs import QUICK, run

TEXTS = {"train": ["a b", "b c a", "c", "a c b"] * 4, "first": ["b a", "c c a"], "second": ["a"]}


@pytest.fixture
def runs(tmp_path):
    for name, lines in TEXTS.items():
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("\n".join(lines))
            (tmp_path / f"val.{language}").write_text("a\nb")
    run(
        "train", "data=multi30k", f"data.path={tmp_path}", "data.test=first", "data.tokens=bytes",
        "model=linear", "model.num_layers=1", "model.num_heads=2", "model.model_dim=16",
        "trainer=cpu", "logger=none", "trainer.max_epochs=1", "test=false", "seed=3",
        f"paths.runs={tmp_path}/runs", "run_id=tiny",
    )  # fmt: skip
    return tmp_path / "runs"


def judge(monkeypatch, folder, *arguments: str) -> dict:
    monkeypatch.setattr(record, "RESULTS", folder / "results")
    monkeypatch.setattr(sys, "argv", ["translation", *arguments, f"--runs={folder}/runs"])
    translation.main()
    return json.loads((folder / "results/translation.json").read_text())


@pytest.mark.usefixtures("no_interpreter")
def test_whole_test_sets_are_judged(runs, tmp_path, monkeypatch, capsys):
    measurement = judge(monkeypatch, tmp_path, "tiny", "--tests", "first", "second")
    assert (measurement["seeds"], [x["run"] for x in measurement["sources"]]) == ([3], ["tiny"])
    rows = measurement["rows"]
    assert [(row["run"], row["test"], row["pairs"]) for row in rows] == [
        ("tiny", "first", 2), ("tiny", "second", 1)
    ]  # fmt: skip
    model = lt.load("tiny", runs=runs)
    for row in rows:
        lines = TEXTS[row["test"]]
        for suffix, beam in (("", 5), ("_greedy", 1)):
            found = [best.text for best, *_ in model.translate(lines, beam=beam)]
            for name, value, _ in judged(found, lines):
                assert row[f"{name}{suffix}"] == round(value, 2)
    (own,) = judge(monkeypatch, tmp_path, "tiny")["rows"]
    assert own["chrF"] == rows[0]["chrF"]


def test_a_model_of_images_is_refused(tmp_path, monkeypatch):
    run("train", *QUICK, f"paths.runs={tmp_path}/runs", "run_id=image", "test=false")
    with pytest.raises(SystemExit, match="error: image is not a model of pairs of texts"):
        judge(monkeypatch, tmp_path, "image")


def test_mosess_tokens_are_those_of_the_papers(monkeypatch):
    class Tokenizer:
        def __init__(self, language):
            assert language == "de"

        normalize = staticmethod(lambda text: text.replace("„", '"'))
        tokenize = staticmethod(lambda text, return_str: text.replace(".", " ."))

    module = SimpleNamespace(MosesPunctNormalizer=Tokenizer, MosesTokenizer=Tokenizer)
    monkeypatch.setitem(sys.modules, "sacremoses", module)
    judge = translation.in_moses_tokens("de")
    reference = 'Ein Hund läuft über "Gras" .'
    assert judge(['ein hund läuft über „Gras".'], [reference]) == pytest.approx(100)
    assert judge(["ein hund läuft über gras."], [reference]) < 60


def test_mosess_tokens_without_them_say_what_to_call(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(SystemExit, match="uv run --with sacremoses"):
        translation.in_moses_tokens("de")
