"""What one can do with a trained model from Python: `linear_transformers.load`."""

import math
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import linear_transformers as lt
from linear_transformers.testing import tensors
from tests.programs import QUICK, run
from tests.tasks.test_speech_runs import CORPUS, RATE, SMALL

COPY = ("data=copy", "data.max_length=5", "data.num_sequences=64", "data.num_held_out=8",
        "data.batch_size=8", "trainer.max_steps=1")  # fmt: skip
SPEECH = (*CORPUS, *SMALL)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    head = "task/distribution=categorical"
    for name, choices in {
        "linear": (), "softmax": ("model=softmax", head), "copy": COPY,
        "speech": (*SPEECH, "model.causal=true"),
        "bidirectional": SPEECH,
    }.items():  # fmt: skip
        given = (f"paths.runs={folder}", f"paths.data={folder}/data", f"run_id={name}")
        run("train", *QUICK, *choices, *given, "test=false")
    return folder


@pytest.fixture(params=["linear", "softmax"])
def model(request, runs):
    return lt.load(request.param, runs=runs, device="cpu")


def test_a_run_is_found_by_name_folder_or_file(runs, monkeypatch):
    folder = runs / "linear"
    best = lt.load(folder)
    assert best.path == folder / "checkpoints/best.ckpt"
    assert lt.load(folder / "checkpoints/last.ckpt").path.name == "last.ckpt"
    monkeypatch.chdir(runs.parent)
    assert lt.load("linear", runs=runs.name).folder == Path(runs.name, "linear")


def test_a_model_is_shown_in_one_line(model):
    held = model.prefix_of(model.images("test")[:1], rows=4)
    assert len(repr(model)) < 500
    assert "\n" not in repr(model)
    assert "state" not in repr(held)


def test_a_wrong_name_is_refused_before_torch_is_imported(tmp_path):
    code = (
        "import sys, linear_transformers as lt\n"
        "try: lt.load('nobody')\nexcept ValueError as error: print(error)\n"
        "print('torch' in sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    message, loaded = outcome.stdout.splitlines()
    assert "nobody is neither a run nor a checkpoint file" in message
    assert loaded == "False"


def test_one_package_is_allowed_by_its_name(runs, monkeypatch):
    monkeypatch.setattr("linear_transformers.config.choices._allowed", allowed := [])
    lt.load("linear", runs=runs, allow="mine")
    assert allowed == ["mine"]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("linear", "model.complete(model.images('test')[:1])"),
        ("speech", "import torch; model.transcribe(torch.zeros(16000))"),
    ],
)
def test_what_takes_long_to_import_is_not_needed(runs, name, use):
    """`benchmarks/startup.py` measures what this keeps."""
    code = (
        "import sys, linear_transformers as lt\n"
        f"model = lt.load({str(runs / name)!r}, device='cpu')\n{use}\n"
        "print(*sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(outcome.stdout.split())
    assert "torch" in loaded
    slow = {"torch._dynamo", "torchvision", "lightning", "torchmetrics", "hydra", "omegaconf",
            "wandb", "mlflow", "triton", "sympy", "scipy"}  # fmt: skip
    assert not slow & loaded


def test_the_version_is_that_of_the_package():
    assert lt.__version__ == version("linear-transformers")
    with pytest.raises(AttributeError, match="no attribute nothing"):
        lt.nothing  # noqa: B018


def test_images_are_completed_as_sample_completes_them(runs, model, tmp_path):
    name = model.folder.name
    job = (f"paths.runs={runs}", f"ckpt={name}", "index=[3]", "n=2", "seed=5", "rows=3")
    run("sample", *job, "gif=false", f"out={tmp_path}/out")
    drawn = model.complete(model.images("test")[3:4], rows=3, n=2, seed=5)
    assert (drawn[:, :3] == model.images("test")[3:4, :3]).all()
    given = np.zeros((8, 8), bool)
    given[:3] = True
    masked = model.complete(model.images("test")[3:4], mask=given, n=2, seed=5)
    np.testing.assert_array_equal(masked, drawn)
    masked = model.complete(model.images("test")[3:4], mask=torch.from_numpy(given), n=2, seed=5)
    np.testing.assert_array_equal(masked, drawn)
    for number, image in enumerate(drawn):
        with Image.open(tmp_path / f"out/0003-{number}.png") as picture:
            shown = np.asarray(picture.convert("L").resize((8, 8), Image.Resampling.NEAREST))
        np.testing.assert_allclose(shown, image[..., 0] * 255.0 / 16, atol=1)


def test_images_are_generated_from_a_seed(model):
    images = model.generate(3, seed=1, batch=2)
    assert images.shape == (3, 8, 8, 1)
    assert images.max() <= 16
    np.testing.assert_array_equal(images, model.generate(3, seed=1, stepper="recurrent"))
    assert (images != model.generate(3, seed=2)).any()


def test_the_log_likelihood_is_what_training_measures(model):
    images = model.images("val")[:5]
    nats = model.log_likelihood(images)
    values = torch.from_numpy(images.reshape(5, -1)).long()
    for same in (values, values.numpy(), torch.from_numpy(images)):
        torch.testing.assert_close(model.log_likelihood(same), nats)
    with torch.no_grad():
        bits = model.task.judge(model.task.statistics(values))["bits_per_dim"]
    assert -nats.mean().item() / 64 / math.log(2) == pytest.approx(bits.item(), rel=1e-6)


def test_a_prefix_is_held_read_on_and_forked(model):
    image = model.images("test")[:1]
    values = torch.from_numpy(image.reshape(-1)).long()
    held = model.prefix_of(image, rows=4)
    assert held.values.tolist() == values[:32].tolist()
    assert held.state_bytes == sum(x.nbytes for x in tensors(held.state.layers))
    grown = model.prefix(values[:31]).read(np.uint8(values[31]))  # as a picture has it
    torch.testing.assert_close(grown.probabilities, held.probabilities, rtol=1e-4, atol=1e-6)
    drawn = torch.multinomial(held.probabilities, 1)
    assert held.read(drawn).values.tolist() == [*held.values.tolist(), *drawn.tolist()]
    # Likelihood by steps is likelihood in parallel.
    prefix, nats = model.prefix(), 0.0
    for value in values.tolist():
        nats += prefix.probabilities[value].log().item()
        prefix = prefix.read(value) if len(prefix.values) < 63 else prefix
    assert nats == pytest.approx(model.log_likelihood(image).item(), rel=1e-4)
    first = held.complete(4, seed=3)
    np.testing.assert_array_equal(first, held.complete(4, seed=3))  # the state is as it was
    expected = model.complete(image, rows=4, n=4, seed=3, stepper="recurrent")
    np.testing.assert_array_equal(first, expected.reshape(4, -1))
    assert held != grown  # each is itself: of tensors there is no yes or no
    assert {model: held}[model] is held


def test_images_may_lie_in_memory_as_they_like(model):
    """Mirrored, or as tensors; and so may masks."""
    mirrored, upper = model.images("test")[:2, ::-1], np.arange(8)[:, None].repeat(8, 1) < 4
    drawn = model.complete(mirrored, mask=upper[::-1], seed=1)
    again = model.complete(torch.from_numpy(mirrored.copy()), mask=upper[::-1].copy(), seed=1)
    np.testing.assert_array_equal(drawn, again)
    assert (drawn[:, 4:] == mirrored[:, 4:]).all()
    held = model.prefix_of(torch.from_numpy(mirrored[:1].copy()), rows=4)
    assert held.values.tolist() == mirrored[0, :4].flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_values_may_be_integers_of_any_width(model, dtype, raises_one_line):
    assert model.prefix(torch.tensor([0, 16], dtype=dtype)).values.tolist() == [0, 16]
    with raises_one_line("Values from 0 to 255"):
        model.prefix(torch.tensor([0, 255], dtype=dtype))


def test_what_does_not_fit_is_refused(model, raises_one_line):
    images = model.images("test")[:1]
    with raises_one_line("[1, 8, 8]", "[n, 8, 8, 1]"):
        model.complete(images[..., 0])
    with raises_one_line("float64", "uint8"):
        model.complete(images / 16)
    with raises_one_line("levels to 17", "levels to 16"):
        model.log_likelihood(images + (17 - images.max()))
    with raises_one_line("Values from 0 to 17", "0 to 16"):
        model.prefix([0, 17])
    with raises_one_line("65 values", "at most 64"):
        model.prefix([0] * 65)
    with raises_one_line("64 values", "at most 64 with the 1 to follow"):
        model.prefix([0] * 64)
    with raises_one_line("[2, 3] of torch.int64", "[time]"):
        model.prefix(torch.arange(6).reshape(2, 3))
    with raises_one_line("torch.float32", "integers"):
        model.prefix(torch.tensor([0.5]))
    with raises_one_line("2 images", "images[:1]"):
        model.prefix_of(images.repeat(2, 0), rows=4)
    with raises_one_line("rows=-3", "8 rows"):
        model.prefix_of(images, rows=-3)
    with raises_one_line("[4, 8] of bool", "[8, 8] of bool"):
        model.complete(images, mask=np.ones((4, 8), bool))
    with raises_one_line("a step reads one integer"):
        model.prefix().read(torch.arange(2))
    with raises_one_line("[0, 8, 8, 1]"):
        model.complete(images[:0])
    with raises_one_line("n=0", "at least 1"):
        model.generate(0)


def test_top_k_needs_a_categorical_head(runs, raises_one_line):
    certain = lt.load("softmax", runs=runs).prefix().complete(2, top_k=1)
    assert (certain[0] == certain[1]).all()
    with raises_one_line("top_k=1", "categorical"):
        lt.load("linear", runs=runs).generate(1, top_k=1)


def test_words_are_continued(runs):
    model = lt.load("copy", runs=runs)
    words = model.prefix([1, 2, 3]).complete(2)
    assert words[:, :3].tolist() == [[1, 2, 3]] * 2
    assert model.log_likelihood(words).shape == (2,)


@pytest.fixture(scope="module")
def recording(runs) -> tuple[Path, np.ndarray]:
    path = runs / "a.wav"
    samples = (0.1 * np.sin(np.arange(RATE) / 9) ** 3).astype(np.float32)
    soundfile.write(path, samples, RATE, subtype="FLOAT")
    return path, samples


@pytest.mark.parametrize("name", ["speech", "bidirectional"])
def test_recordings_are_transcribed_from_files_and_from_samples(runs, recording, name):
    path, samples = recording
    model = lt.load(name, runs=runs)
    printed = run("transcribe", f"paths.runs={runs}", f"ckpt={name}", f"audio={path}")
    text = model.transcribe(path)
    assert printed.rstrip("\n").partition("\t")[2] == text
    assert model.transcribe(samples) == text
    both = np.stack([samples, samples], axis=1)
    assert model.transcribe(torch.from_numpy(both), sample_rate=RATE) == text
    assert isinstance(model.transcribe(path, beam=2), str)


def test_a_stream_hears_what_the_whole_recording_gives_and_can_be_forked(
    runs, recording, raises_one_line
):
    path, samples = recording
    model = lt.load("speech", runs=runs)
    stream = model.stream()
    for start in range(0, 8000, 1000):
        stream.hear(samples[start : start + 1000])
    fork = stream.fork()
    stream.hear(np.zeros(3000, np.float32), last=True)  # another end, which the fork does not hear
    fork.hear(samples[8000:], last=True)
    assert fork.text == model.transcribe(path)
    with raises_one_line("ended"):
        fork.hear(samples)
    with raises_one_line("[9, 2]", "one channel"):
        model.stream().hear(np.zeros((9, 2)))
    with raises_one_line("sample_rate=0 was asked for", "at least 1"):
        model.stream(sample_rate=0)
    for call in (model.stream, partial(model.transcribe, np.zeros(RATE))):
        with raises_one_line("sample_rate=8000.0", "whole number"):
            call(sample_rate=8000.0)


def test_a_recogniser_in_training_is_refused(runs, recording, raises_one_line):
    """Dropout and masks of spectrograms would make it hear something else each time."""
    model = lt.load("speech", runs=runs)
    model.task.model.train()
    for use in (lambda: model.transcribe(recording[1]), model.stream):
        with raises_one_line("train() mode", "eval()"):
            use()


def test_a_bidirectional_model_does_not_stream(runs, raises_one_line):
    with raises_one_line("model.causal=true"):
        lt.load("bidirectional", runs=runs).stream()


def test_a_recording_shorter_than_a_frame_is_refused(runs, raises_one_line):
    with raises_one_line("25 ms"):
        lt.load("speech", runs=runs).transcribe(np.zeros(10, np.float32))
