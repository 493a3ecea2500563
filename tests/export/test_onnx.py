"""ONNX files compute what the model computes, step by step and over whole sequences."""

import json
import math
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import linear_transformers as lt
from linear_transformers.data.images import ImageShape
from linear_transformers.data.speech import SpeechShape
from linear_transformers.data.text import TextShape
from linear_transformers.export import onnx
from linear_transformers.export.operator import SequencesByOperator
from linear_transformers.export.steps import SequenceStep, SpeechStep
from linear_transformers.sampling.compiled import CompiledStepper
from linear_transformers.tasks.loading import build_task
from tests.conftest import CONF, PROJECT, configured
from tests.programs import run

ort = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
from onnx.checker import check_model  # noqa: E402
from torch.onnx._internal.exporter._registration import ONNXRegistry  # noqa: E402

BATCH, STEPS = 5, 100
SMALL = ("model.num_layers=1", "model.num_heads=2", "model.model_dim=16")
IMAGES, TEXTS = ImageShape(10, 10, 1, 17), TextShape(64, "bytes", "")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module", autouse=True)
def _one_table_of_operators():
    """torch makes it anew for every export: a second each."""
    made = cache(ONNXRegistry.from_torchlib.__func__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", classmethod(made))
        yield


def built(shape, *words: str):
    """A task with random weights, none of which is 0 or 1 by chance."""
    torch.manual_seed(0)
    data = ("data=digits",) if shape is IMAGES else ("data=text", "data.path=unread")
    job = configured(*data, *SMALL, *words)
    task = build_task(job.task, job.model, shape)
    for parameter in task.model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    task.model.eval()
    return task


def session(graph: Path | bytes):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(graph, options)


class Files:
    """The files of an exported model, called as `onnx.json` says."""

    def __init__(self, folder: Path):
        self.about = json.loads((folder / onnx.ABOUT).read_text())
        self.session = {name: session(folder / f"{name}.onnx") for name in ("step", "prefill")}
        self.takes = [each.name for each in self.session["step"].get_inputs()]

    def start(self, batch: int) -> dict[str, np.ndarray]:
        states = self.about["states"].items()
        return {name: np.zeros((batch, *x["shape"]), x["dtype"]) for name, x in states}

    def call(self, name: str, position: int, state, **inputs):
        """Return the outputs, and the state after them."""
        given = {**inputs, "position": np.array([position]), **state}
        output, *rest = self.session[name].run(None, given)
        return output, dict(zip(state, rest[-len(state) :], strict=True))


def exported(step, folder: Path, *, distribution=None, **options) -> Files:
    files = onnx.files(step, distribution=distribution, about={}, **options)
    for name, data in files.items():
        assert str(PROJECT).encode() not in data, "a file says where it was made"
        (folder / name).write_bytes(data)
    return Files(folder)


def stepped(files: Files, tokens: np.ndarray):
    """The outputs after each token, and the state after all."""
    state, outputs = files.start(len(tokens)), []
    for i in range(tokens.shape[1]):
        output, state = files.call("step", i, state, token=tokens[:, i])
        outputs.append(output)
    return np.stack(outputs, 1), state


# Each mixer, and each choice that a state or a graph depends on, once.
CHOICES = {
    "linear": (IMAGES, "model=linear", "model.positions=concatenated"),
    "linear, any length": (TEXTS, "model=linear", "model.positions=added"),
    "linear_conv": (IMAGES, "model=linear_conv", "model.positions=axial"),
    "rotary": (TEXTS, "model=linear", "model.mixer.rotary=true", "model.mixer.qk_norm=rms"),
    "grouped": (IMAGES, "model=linear", "model.mixer.attention.num_key_heads=1"),
    "softmax": (IMAGES, "model=softmax", "model.positions=learned"),
    "retention": (TEXTS, "model=retention"),
    "gated": (TEXTS, "model=gated"),
    "delta": (TEXTS, "model=delta"),
    "kimi_delta": (IMAGES, "model=kimi_delta"),
    "gated_delta": (IMAGES, "model=gated_delta", "model.norm_type=rms", "model.activation=swiglu"),
    "hybrid": (TEXTS, "model=hybrid", "model.num_layers=2", "model.local.attention.window=7"),
    "lstm": (TEXTS, "model=lstm"),
}


@pytest.mark.parametrize("name", CHOICES)
@torch.inference_mode()
def test_steps_and_sequences_in_onnx_are_those_of_the_model(name, tmp_path):
    shape, *words = CHOICES[name]
    task = built(shape, *words)
    files = exported(SequenceStep(task.model), tmp_path)
    tokens = torch.randint(shape.num_values, (BATCH, STEPS))
    expected, _ = task.model.prefill(tokens)
    outputs, state = stepped(files, tokens.numpy())
    np.testing.assert_allclose(outputs, expected.numpy(), **CLOSE)
    first, half = files.call("prefill", 0, files.start(BATCH), token=tokens[:, :37].numpy())
    rest, after = files.call("prefill", 37, half, token=tokens[:, 37:].numpy())
    np.testing.assert_allclose(np.concatenate([first, rest], 1), expected.numpy(), **CLOSE)
    for part in state:
        np.testing.assert_allclose(after[part], state[part], **CLOSE)


@torch.inference_mode()
def test_a_cache_of_softmax_has_a_capacity_up_to_which_nothing_is_forgotten(tmp_path):
    model = built(TEXTS, "model=softmax").model
    files = exported(SequenceStep(model, capacity=40), tmp_path)
    shapes = {tuple(state["shape"][:-1]) for state in files.about["states"].values()}
    assert shapes == {(2, 40), ()}  # keys and values, and how many were written
    tokens = torch.randint(TEXTS.num_values, (BATCH, 60))
    outputs, expected = stepped(files, tokens.numpy())[0], model(tokens).numpy()
    np.testing.assert_allclose(outputs[:, :40], expected[:, :40], **CLOSE)
    assert np.abs(outputs[:, 40:] - expected[:, 40:]).max() > 1e-3


BY_OPERATOR = ("linear_conv", "grouped", "retention", "kimi_delta")


@pytest.mark.parametrize("name", BY_OPERATOR)
@torch.inference_mode()
def test_sequences_by_the_standards_operator_are_those_of_the_model(name):
    shape, *words = CHOICES[name]
    model = built(shape, *words).model
    step, sequences = SequenceStep(model), SequencesByOperator(model)
    graph = onnx.graph_of_sequences(sequences)
    check_model(graph)
    assert [each.version for each in graph.opset_import] == [27]
    assert sum(node.op_type == "LinearAttention" for node in graph.graph.node) == 1
    tokens = torch.randint(shape.num_values, (BATCH, STEPS))
    expected, _ = model.prefill(tokens)
    prefill = session(graph.SerializeToString())
    state = {name: np.zeros((BATCH, *x.shape[1:]), np.float32) for name, x in step.states.items()}
    outputs = []
    for start, end in ((0, 1), (1, 38), (38, STEPS)):
        given = {"token": tokens[:, start:end].numpy(), "position": np.array([start]), **state}
        output, *new = prefill.run(None, given)
        outputs.append(output)
        state = dict(zip(state, new, strict=True))
    np.testing.assert_allclose(np.concatenate(outputs, 1), expected.numpy(), **CLOSE)


def test_other_mixers_are_no_operator_of_the_standard(raises_one_line):
    for name in ("rotary", "softmax", "lstm"):
        shape, *words = CHOICES[name]
        with raises_one_line("onnx_prefill=scan", "LinearAttention"):
            SequencesByOperator(built(shape, *words).model)


MAPS = sorted(path.stem for path in (CONF / "model/feature_map").glob("*.yaml"))


@pytest.mark.parametrize("name", MAPS)
@torch.inference_mode()
def test_every_feature_map_has_a_graph(name):
    task = built(IMAGES, "model=linear", f"model/feature_map={name}")
    phi = task.model.stack.mixers[0].attention.feature_map
    x = torch.randn(BATCH, 8)
    graph = onnx.traced(phi, {"x": x[:3]}, ["features"], alike=[])
    (features,) = ort.InferenceSession(graph.SerializeToString()).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(features, phi(x).numpy(), **CLOSE)


@pytest.mark.parametrize(
    "words", [["model=linear_conv"], ["model=delta", "model.num_heads=1"]], ids=" ".join
)
@torch.inference_mode()
def test_in_int8_the_model_is_the_one_whose_matrices_are_rounded(words, tmp_path):
    task = built(IMAGES, *words)
    exact_graph = onnx.graph_of(SequenceStep(task.model)).SerializeToString()
    sequences = SequencesByOperator(task.model)
    options = {"precision": "int8", "sequences": sequences}
    files = exported(SequenceStep(task.model), tmp_path, **options)
    saved = len(exact_graph) - (tmp_path / onnx.STEP).stat().st_size
    matrices = sum(
        module.weight.numel()
        for module in task.model.stack.blocks.modules()
        if isinstance(module, torch.nn.Linear)
    )
    assert saved > 2 * matrices  # of 3 bytes each, less what reads them
    tokens = torch.randint(IMAGES.num_values, (BATCH, 31))
    exact = task.model(tokens)
    CompiledStepper.convert(task.model, "int8")
    rounded = task.model(tokens)
    outputs, _ = stepped(files, tokens.numpy())
    np.testing.assert_allclose(outputs, rounded.numpy(), **CLOSE)
    whole, _ = files.call("prefill", 0, files.start(BATCH), token=tokens.numpy())
    np.testing.assert_allclose(whole, rounded.numpy(), **CLOSE)
    assert (rounded - exact).abs().max() > 1e-3  # else nothing was tested


@pytest.mark.parametrize("head", ["logistic_mixture", "categorical"])
def test_values_are_drawn_as_here(head, tmp_path):
    task = built(IMAGES, "model=linear", f"task/distribution={head}")
    distribution = task.distribution
    files = exported(SequenceStep(task.model), tmp_path, distribution=distribution)
    draw = session(tmp_path / onnx.DRAW)
    parameters = torch.randn(101, distribution.num_parameters)
    noise = torch.rand(101, distribution.noise_dim)
    assert files.about["noise"] == distribution.noise_dim
    for temperature in (0.5, 1.0):
        given = {
            "parameters": parameters.numpy(),
            "noise": noise.numpy(),
            "temperature": np.array([temperature], np.float32),
        }
        (values,) = draw.run(None, given)
        expected = distribution.sample(parameters, noise, temperature=temperature).numpy()
        assert (values != expected).sum() <= 1  # on a boundary between two
        assert len({*values}) > 5


@pytest.mark.parametrize(
    "words",
    [
        ("task.encoder.subsampling=4", "task.encoder.lookahead=3"),
        ("task.encoder.subsampling=1", "model=gated"),
        ("task.encoder.subsampling=2", "task.encoder.width=5", "model=linear_conv"),
    ],
)
@torch.inference_mode()
def test_a_causal_speech_encoder_in_onnx_is_that_of_the_model(words, tmp_path):
    torch.manual_seed(0)
    job = configured("data=espeak", *SMALL, "model.causal=true", *words)
    shape = SpeechShape(10, 16000, "phones", ("AA", "B"))
    encoder = build_task(job.task, job.model, shape).model.eval()
    encoder.adopt(torch.randn(shape.num_mels), torch.rand(shape.num_mels) + 0.5, longest=99)
    step = SpeechStep(encoder)
    files = exported(step, tmp_path)
    size = encoder.subsampling
    lengths = torch.tensor([41, 26, 1])
    features = torch.randn(3, 41, shape.num_mels)
    expected, counts = encoder(features, lengths)
    steps = int(counts.max()) + step.delay
    padded = torch.zeros(3, steps * size, shape.num_mels)
    padded[:, :41] = features
    frames = padded.unflatten(1, (steps, size))
    present = (torch.arange(steps) < counts.unsqueeze(1)).float()
    state = files.start(3)
    whole, _ = files.call("prefill", 0, state, features=frames.numpy(), present=present.numpy())
    for i in range(steps):
        scores, state = files.call(
            "step", i, state, features=frames[:, i].numpy(), present=present[:, i].numpy()
        )
        np.testing.assert_allclose(scores, whole[:, i], **CLOSE)
    for row, count in enumerate(counts):
        found = whole[row, step.delay :][:count]
        np.testing.assert_allclose(found, expected[row, :count].numpy(), **CLOSE)


@pytest.mark.parametrize(
    ("shape", "words", "told"),
    [
        (TEXTS, ("model=softmax",), ("sequences without an end", "capacity=1024")),
        (IMAGES, ("model=lsh1",), ("no graph for batches of any size",)),
        (IMAGES, ("model=sparse",), ("the state of", "grows")),
    ],
)
def test_what_has_no_graph_is_refused(shape, words, told, raises_one_line):
    with raises_one_line(*told):
        onnx.files(SequenceStep(built(shape, *words).model), distribution=None, about={})


def test_the_documents_lines_draw_images_without_this_project(tmp_path):
    run("export", "ckpt=pretrained/digits", f"out={tmp_path / 'DIR'}", "onnx=true")
    blocks = re.findall(
        r"```python\n(.*?)```", (PROJECT / "docs/exporting.md").read_text(), re.DOTALL
    )
    (code,) = (block for block in blocks if "onnxruntime" in block)
    code += (
        "\nimport sys; assert not {'torch', 'linear_transformers'} & {*sys.modules}"
        "\nnp.save('images.npy', np.stack(images, 1))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    drawn = torch.from_numpy(np.load(tmp_path / "images.npy"))
    assert drawn.shape == (16, 64)
    model = lt.load("pretrained/digits")
    bits = -model.log_likelihood(drawn).mean().item() / (64 * math.log(2))
    assert abs(bits - 1.74) < 0.35  # of such images as the model knows


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch, raises_one_line):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr(sys, "argv", ["/bin/linear-transformers", "export"])
    with raises_one_line("onnx=true needs onnxscript", "pip install 'linear-transformers[onnx]'"):
        onnx.traced(torch.nn.Identity(), {}, [], [])
