"""export.py, and what it wrote, from every side."""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml

import linear_transformers as lt
from linear_transformers.config.folder import PACKAGE
from linear_transformers.runs.exported import CARD, CONFIG, EXAMPLES, WEIGHTS, portable, upload
from tests.conftest import PROJECT
from tests.programs import QUICK, complaint, run
from tests.tasks.test_speech_runs import CORPUS, SMALL

SPEECH = (*CORPUS, *SMALL)
TEXT = "To be, or not to be. " * 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT)
    text = ("data=text", f"data.path={folder}/text.txt", "data.segment=16", "data.batch_size=2")
    pairs = ("data=transduction", "data.num_train=32", "data.num_held_out=8")
    for name, words in {
        "images": ("test=true",),
        "text": (*text, "test=false"),
        "speech": (*SPEECH, "model.causal=true", "test=false"),
        "pairs": (*pairs, "test=false"),
    }.items():
        places = (f"paths.runs={folder}", f"paths.data={folder}/data", f"run_id={name}")
        run("train", *QUICK, *words, *places)
    return folder


def export(runs: Path, name: str, *words: str) -> str:
    return run("export", f"ckpt={name}", f"paths.runs={runs}", *words)


@pytest.fixture(scope="module")
def folder(runs, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "images"
    export(runs, "images", f"out={out}", "license=mit")
    return out


@pytest.mark.parametrize("name", ["images", "text", "speech", "pairs"])
def test_an_exported_model_is_the_one_that_was_trained(name, runs, tmp_path):
    printed = export(runs, name, f"out={tmp_path / name}")
    model, trained = lt.load(tmp_path / name), lt.load(name, runs=runs)
    assert type(model) is type(trained)
    assert model.task.shape == trained.task.shape
    for (key, found), expected in zip(
        model.task.model.state_dict().items(), trained.task.model.state_dict().values(), strict=True
    ):
        assert torch.equal(found, expected), key
    program = "transcribe" if name == "speech" else "translate" if name == "pairs" else "sample"
    needed = {"transcribe": " audio=FILE", "translate": " text=-"}.get(program, "")
    assert re.search(rf"next     uv run {program}\.py ckpt=\S+{needed}\n", printed)


def test_programs_take_its_folder_for_a_run(folder, runs, tmp_path):
    run("sample", f"ckpt={folder}", "images=2", f"out={tmp_path / 'samples'}")
    assert (tmp_path / "samples/grid.png").is_file()
    for name in ("pairs", "speech"):
        export(runs, name, f"out={tmp_path / name}")
    (tmp_path / "lines.txt").write_text("abc\n")
    assert run("translate", f"ckpt={tmp_path / 'pairs'}", f"text={tmp_path / 'lines.txt'}")
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 16000)
    assert "a.wav" in run(
        "transcribe", f"ckpt={tmp_path / 'speech'}", f"audio={tmp_path / 'a.wav'}", "format=json"
    )


def test_images_to_complete_can_be_brought_along(runs, tmp_path):
    export(runs, "images", f"out={tmp_path / 'few'}", "examples=3")
    model, trained = lt.load(tmp_path / "few"), lt.load("images", runs=runs)
    assert (model.examples() == trained.images("test")[:3]).all()
    assert (trained.examples() == trained.images("test")).all()
    run("sample", f"ckpt={tmp_path / 'few'}", f"out={tmp_path / 'samples'}", "gif=false")
    assert len([*(tmp_path / "samples").glob("0*.png")]) == 3
    assert "test images are 0 to 2" in complaint("sample", f"ckpt={tmp_path / 'few'}", "index=[3]")
    whole = (tmp_path / "few" / EXAMPLES).read_bytes()
    for torn in (b"no images", whole[:8] + b"\x09" + whole[9:]):  # the latter's header is cut
        (tmp_path / "few" / EXAMPLES).write_bytes(torn)
        assert "holds no images of this model" in complaint("sample", f"ckpt={tmp_path / 'few'}")


def test_it_can_be_exported_again_with_all_that_is_known(folder, tmp_path):
    run("export", f"ckpt={folder}", f"out={tmp_path / 'again'}", "license=mit")
    first, again = (
        json.loads((each / CONFIG).read_text()) for each in (folder, tmp_path / "again")
    )
    assert first == again
    assert first["figures"]["test_bits_per_dim"] > 0
    assert first["provenance"]["command"].startswith("uv run train.py")


def test_figures_of_a_test_are_those_of_the_weights(tmp_path):
    """The last of three steps is not the best one, which was tested."""
    words = (*QUICK, f"paths.runs={tmp_path}", "run_id=a", "scheduler=constant", "resume=auto")
    run("train", *words, "trainer.max_epochs=2")
    run("train", *words, "trainer.max_epochs=3", "resume_optimizer=keep", "optimizer.lr=1.0")
    for name, told in (("best", True), ("last", False)):
        out = tmp_path / name
        run("export", f"ckpt={tmp_path}/a/checkpoints/{name}.ckpt", f"out={out}")
        figures = json.loads((out / CONFIG).read_text())["figures"]
        assert ("test_bits_per_dim" in figures) == told
        assert ("Test:" in (out / CARD).read_text()) == told
        assert "val_bits_per_dim" in figures


def test_the_card_says_what_it_is(folder, runs):
    _, head, text = (folder / CARD).read_text().split("---\n", 2)
    assert yaml.safe_load(head)["license"] == "mit"
    figures = json.loads((folder / CONFIG).read_text())["figures"]
    for words in (
        "8 x 8 x 1", "Data: Digits", f"{figures['test_bits_per_dim']:g} bits/dim",
        "uv run train.py", "lt.load", "DeltaNet",
    ):  # fmt: skip
        assert words in text
    assert str(runs) not in text  # nothing of this machine


def test_no_place_of_the_machine_is_in_it(runs, tmp_path):
    export(runs, "text", f"out={tmp_path / 'text'}")
    written = (tmp_path / "text" / CONFIG).read_text()
    assert str(runs) not in written + (tmp_path / "text" / CARD).read_text()
    config = json.loads(written)["config"]
    assert config["paths"] == {"data": "data", "runs": "runs"}
    assert config["data"]["path"] == "runs/text.txt"
    assert "logger" not in config
    elsewhere = {"paths": {"data": "/a/b"}, "data": {"path": ["/x/y/z.txt", "/a/b/c"], "n": 1}}
    expected = {"paths": {"data": "data"}, "data": {"path": ["z.txt", "data/c"], "n": 1}}
    assert portable(elsewhere) == expected
    assert portable(expected) == expected


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_weights_can_be_rounded(precision, runs, tmp_path):
    out = tmp_path / precision
    export(runs, "images", f"out={out}", f"precision={precision}")
    model, trained = lt.load(out).task.model, lt.load("images", runs=runs).task.model
    weight, exact = model.head.weight, trained.head.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, exact.to(getattr(torch, precision)).float())
    assert f"rounded to {precision} afterwards" in (out / CARD).read_text()
    run("export", f"ckpt={out}", f"out={tmp_path}/again")  # which they stay, in float32
    assert f"rounded to {precision} afterwards" in (tmp_path / "again" / CARD).read_text()


def test_damage_is_noticed(folder, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    whole = (damaged / WEIGHTS).read_bytes()
    (damaged / WEIGHTS).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "is damaged" in complaint("sample", f"ckpt={damaged}")
    (damaged / WEIGHTS).write_bytes(whole)
    config = json.loads((damaged / CONFIG).read_text())
    config["config"]["model"]["num_heads"] = 4
    (damaged / CONFIG).write_text(json.dumps(config))
    assert "was changed after it was saved" in complaint("sample", f"ckpt={damaged}")
    (damaged / CONFIG).write_text("{")
    assert "does not say what model.safetensors holds" in complaint("sample", f"ckpt={damaged}")
    (damaged / CONFIG).unlink()
    assert "No such file" in complaint("sample", f"ckpt={damaged}")


def test_a_configuration_can_name_no_code(folder, tmp_path):
    evil = tmp_path / "evil"
    shutil.copytree(folder, evil)
    config = json.loads((evil / CONFIG).read_text())
    del config["digest"]
    config["config"]["task"] = {"_target_": "os.system", "command": f"touch {tmp_path}/ran"}
    (evil / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"os\.system"):
        lt.load(evil)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("weights", ["ema", "raw"])
def test_an_exported_model_has_one_set_of_weights(folder, weights, raises_one_line):
    with raises_one_line(f"weights={weights}", "one set of weights"):
        lt.load(folder, weights=weights)


def test_a_page_may_be_in_the_folder_of_its_model(runs, tmp_path):
    out = tmp_path / "both"
    export(runs, "images", f"out={out}", f"html={out}/page.html")
    assert {"page.html", WEIGHTS, CONFIG, CARD} <= {path.name for path in out.iterdir()}


def test_what_is_refused_leaves_no_page(runs, tmp_path):
    words = ("onnx=true", f"out={tmp_path}/out", f"html={tmp_path}/page.html", "onnx_prefill=none")
    complaint("export", f"paths.runs={runs}", "ckpt=images", *words)
    assert not list(tmp_path.iterdir())


def test_a_page_has_the_title_that_was_typed(runs, tmp_path):
    page = tmp_path / "page.html"
    printed = export(runs, "images", f"html={page}", "title=Half a digit, 'completed' & more")
    assert "open it in a browser" in printed
    text = page.read_text()
    assert "<h1>Half a digit, &#x27;completed&#x27; &amp; more</h1>" in text
    assert "bits/dim" in text


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("images", (), "Give out=DIR, or html=FILE"),
        ("images", ("onnx=true", "html=page.html"), "onnx=true is of an exported folder"),
        ("images", ("out=OUT", "onnx_weights=int8"), "Add onnx=true"),
        ("images", ("out=OUT", "onnx=true", "capacity=5"), "capacity=5 is of softmax"),
        ("images", ("out=OUT", "title=Digits"), "Add html=FILE"),
        ("images", ("out=OUT", "examples=100000"), "examples=100000, and there are"),
        ("images", ("html=OUT", "examples=100000"), "test images. Ask for fewer"),
        ("text", ("html=OUT", "examples=3"), "LanguageModeling has none"),
        ("speech", ("out=OUT", "examples=3"), "SpeechRecognition has none"),
        ("speech", ("out=OUT", "onnx=true", "onnx_prefill=operator"), "of other sequences"),
        ("images", ("out=OUT", "hub=me/it"), "license=mit"),
        ("images", ("out=TAKEN",), "exists already"),
        ("images", ("out=/proc/nowhere",), "cannot be written"),
        ("images", ("html=TAKEN",), "exists already"),
        ("pairs", ("out=OUT", "onnx=true"), "Translation has no step that other runtimes"),
        ("speech", ("html=OUT",), "SpeechRecognition has no page"),
        ("images", ("out=OUT", "html=OUT"), "are one place"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(
    name, words, told, runs, tmp_path
):
    taken = tmp_path / "taken"
    taken.mkdir()
    places = {"OUT": str(tmp_path / "out"), "TAKEN": str(taken)}
    given = [word.replace("OUT", places["OUT"]).replace("TAKEN", places["TAKEN"]) for word in words]
    message = complaint("export", f"ckpt={name}", f"paths.runs={runs}", *given)
    assert told in message
    assert not (tmp_path / "out").exists()


class Hub:
    """A folder that stands in for the Hugging Face hub."""

    def __init__(self, folder: Path):
        self.folder = folder

    def create_repo(self, name: str, exist_ok: bool) -> None:
        assert exist_ok
        (self.folder / name).mkdir(parents=True, exist_ok=True)

    def upload_folder(self, repo_id: str, folder_path: Path) -> str:
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)
        return f"hub/{repo_id}"

    def download(self, name: str, allow_patterns: list[str]) -> str:
        if not (self.folder / name).is_dir():
            raise FileNotFoundError(f"no repository {name}")
        assert allow_patterns == [WEIGHTS, CONFIG, EXAMPLES]
        return str(self.folder / name)


def test_a_model_goes_to_the_hub_and_comes_back(runs, tmp_path, monkeypatch):
    import huggingface_hub

    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.download)
    out = tmp_path / "out"
    printed = export(runs, "images", f"out={out}", "hub=me/digits", "license=mit")
    assert "hub      hub/me/digits" in printed
    model = lt.load("hub:me/digits", runs=tmp_path)
    assert torch.equal(model.task.model.head.weight, lt.load(out).task.model.head.weight)
    run("sample", "ckpt=hub:me/digits", "images=1", f"paths.runs={tmp_path}")
    (made,) = tmp_path.glob("hub-me-digits/samples/*/grid.png")  # and nothing in the hub's folder
    assert made.is_file()
    assert "hub:me/other could not be read" in complaint("sample", "ckpt=hub:me/other")


def test_a_hub_that_cannot_be_reached_is_one_line(tmp_path, monkeypatch, raises_one_line):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with raises_one_line("hub=me/digits could not be written", f"The model is in {tmp_path}"):
        upload(tmp_path, "me/digits")


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="uv sync --extra hub"):
        lt.load("hub:me/digits")


PRETRAINED = sorted(path.parent.name for path in (PACKAGE / "pretrained").glob(f"*/{WEIGHTS}"))


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_model_that_comes_with_the_project_brings_images_that_it_knows(name):
    model = lt.load(f"pretrained/{name}")
    images = model.examples()
    assert len(images) == 16
    bits = -model.log_likelihood(images).mean().item() / (images[0].size * math.log(2))
    figures = json.loads((model.path.parent / CONFIG).read_text())["figures"]
    assert abs(bits - figures["test_bits_per_dim"]) < 0.2  # of sixteen images


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_model_that_comes_with_the_project_is_as_good_as_it_says(name):
    model, root = lt.load(f"pretrained/{name}"), PROJECT / "data"
    about = json.loads((model.path.parent / CONFIG).read_text())
    assert about["provenance"]["clean"]
    inside = "root" in model.data.options
    if inside and not (root / "MNIST/raw/t10k-images-idx3-ubyte").is_file():
        pytest.skip("data/MNIST is not here")
    images = model.images("test", data_root=str(root) if inside else None)[:500]
    bits = -model.log_likelihood(images) / (images[0].size * math.log(2))
    # Digits are all there; of others, the first 500 are a sample.
    error = 4 * bits.std().item() / len(bits) ** 0.5 if inside else 0.001
    assert abs(bits.mean().item() - about["figures"]["test_bits_per_dim"]) < error


def test_what_does_not_come_with_the_project_is_named(raises_one_line):
    with raises_one_line("pretrained/nobody", *PRETRAINED):
        lt.load("pretrained/nobody")


def test_it_can_be_tested(tmp_path):
    printed = run(
        "train", "train=false", "resume=pretrained/digits", f"paths.runs={tmp_path}",
        "logger=none", "trainer.limit_test_batches=1", "~callbacks.samples",
    )  # fmt: skip
    assert "this model" in printed
    assert [path.name for path in tmp_path.glob("test-digits-*/samples")] == ["samples"]


def test_nothing_is_written_into_the_package(tmp_path):
    folder = PACKAGE / "pretrained/digits"
    before = sorted(folder.iterdir())
    run("sample", "ckpt=pretrained/digits", "images=2", "gif=false", f"paths.runs={tmp_path}")
    assert (tmp_path / "pretrained-digits/samples/complete-seed0/grid.png").is_file()
    assert sorted(folder.iterdir()) == before


def test_a_folder_is_whole_or_absent(runs, tmp_path, monkeypatch):
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("linear_transformers.runs.checkpoint.save", full)
    out = tmp_path / "new/out"
    message = complaint("export", "ckpt=images", f"paths.runs={runs}", f"out={out}")
    assert "cannot be written (No space left on device)" in message
    assert [*out.parent.iterdir()] == []
