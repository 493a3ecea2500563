"""A training step queues its work on a GPU and never waits for it; compiled, it is one graph."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode

from linear_transformers.data import CopyShape, ImageShape, PairShape, SpeechShape
from linear_transformers.data.speech.labels import PHONES
from linear_transformers.ops.cross_entropy import FEW
from linear_transformers.shapes import PairBatch, SpeechBatch
from linear_transformers.tasks.base import Task
from linear_transformers.tasks.loading import build_task
from tests.conftest import PROJECT, TINY, configured

GPU = torch.device("cuda")
MODEL = (*TINY, "model=linear", "model.mixer.attention.kernel=triton")
IMAGES, COPIES = ImageShape(4, 4, 1, 256), CopyShape(8, 8)
SPEECH = SpeechShape(40, 16000, "phones", tuple(PHONES))
LETTERS, SIGNS = (
    PairShape("characters", "".join(map(chr, range(40, 40 + n))), 9) for n in (9, FEW)
)
TASKS = {
    "images": (IMAGES, (*MODEL, "data=digits")),
    "copying": (COPIES, (*MODEL, "data=copy")),
    "speech": (SPEECH, (*TINY, "model=linear", "data=espeak")),
    "causal speech": (SPEECH, (*MODEL, "data=espeak", "model.causal=true")),
    "translation": (LETTERS, (*MODEL, "data=transduction", "task/encoder=linear")),
    "translation, smoothed, of many tokens": (
        SIGNS,
        (*MODEL, "data=transduction", "task/encoder=softmax", "task.label_smoothing=0.1"),
    ),
}


def built(name: str) -> Task:
    shape, overrides = TASKS[name]
    job = configured(*overrides)
    return build_task(job.task, job.model, shape)


def batch_for(name: str) -> torch.Tensor | SpeechBatch | PairBatch:
    if "translation" in name:
        source, target = torch.tensor([[3, 4, 5], [6, 1, 1]]), torch.tensor([[0, 4, 1], [0, 1, 1]])
        return PairBatch(source, torch.tensor([3, 1]), target, torch.tensor([3, 2]))
    if "speech" in name:
        lengths, labels = torch.tensor([90, 70]), torch.tensor([[1, 2, 3], [4, 5, 0]])
        return SpeechBatch(torch.randn(2, 90, 40), lengths, labels, torch.tensor([3, 2]))
    shape = TASKS[name][0]
    return torch.randint(0, shape.num_values, (3, shape.length), dtype=torch.uint8)


class Waits(TorchDispatchMode):
    """What a device is waited for: tensors read from it, or written to it from a place that is
    used again."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        given = [x for x in arguments if isinstance(x, torch.Tensor)]
        if isinstance(result, torch.Tensor) and result.device.type == "cpu":
            self.found += [str(function) for x in given if x.device.type == "cuda"]
        elif "_to_copy" in str(function) and not (options or {}).get("non_blocking"):
            self.found += [str(function) for x in given if x.device.type == "cpu"]
        return result


def ctc_that_reads_lengths(log_probs, labels, lengths, label_lengths, **options):
    """As torch's does, of which there is no fake."""
    assert lengths.device.type == label_lengths.device.type == "cpu"
    return log_probs.new_zeros(len(lengths))


@pytest.mark.parametrize("name", TASKS)
def test_the_loss_does_not_wait_for_the_device(monkeypatch, name):
    """On tensors that are on a GPU as far as anyone can tell."""
    monkeypatch.setattr(F, "ctc_loss", ctc_that_reads_lengths)
    task = built(name)
    with FakeTensorMode(allow_non_fake_inputs=True):
        task.model.to(GPU).train()
        with Waits() as waits:
            loss = task.loss(move_data_to_device(batch_for(name), GPU))
        assert loss.mean.device.type == "cuda"
    assert waits.found == []


def test_waiting_is_found():
    with FakeTensorMode(), Waits() as waits:
        torch.zeros(3, device=GPU).cpu()
        torch.zeros(3).to(GPU)
    assert len(waits.found) == 2
    x = torch.ones(3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with pytest.raises(DataDependentOutputException):
            int(x.to(GPU).sum())
        with pytest.raises(DynamicOutputShapeException):
            x.to(GPU)[x.to(GPU) > 0]


def waiting_alone(function):
    """torch's CTC reads lengths on the host, both ways: what is ours, around it, may not wait."""

    def run(scores, *arguments, **options):
        mode, allow = torch.cuda.get_sync_debug_mode(), torch.cuda.set_sync_debug_mode
        allow(0)
        losses = function(scores, *arguments, **options)
        losses.register_hook(lambda gradient: allow(0))
        scores.register_hook(lambda gradient: allow(mode))
        allow(mode)
        return losses

    return run


@pytest.mark.gpu
@pytest.mark.parametrize("name", TASKS)
def test_a_step_does_not_wait_for_a_real_device(name, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "ctc_loss", waiting_alone(F.ctc_loss))
    task = built(name)
    task.model.to(GPU).train()
    optimizer = torch.optim.Adam(task.model.parameters(), fused=True)
    batch = move_data_to_device(batch_for(name), GPU)
    # On a GPU the gradient of CTC is summed in whatever order threads arrive.
    torch.use_deterministic_algorithms(True, warn_only="speech" in name)
    for mode in (0, 2):  # the first step compiles kernels; in the second, waiting raises
        torch.cuda.set_sync_debug_mode(mode)
        try:
            task.loss(batch).mean.backward()
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), 1.0)
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode(0)
    assert all(x.isfinite().all() for x in task.model.parameters())


def test_a_compiled_model_is_one_graph_with_the_operators_in_it(tmp_path):
    """In a process of its own: compilation does not see through the tests' checks of shapes."""
    program = """
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from tests.training.test_waiting import batch_for, built

task = built("images")
task.model.train()
batch = batch_for("images")

def loss(step):
    task.model.stack.draws.set(3, step)
    return task.loss(batch).mean

expected = [loss(step) for step in range(3)]
assert len({float(x) for x in expected}) == 3
counter = CompileCounterWithBackend("aot_eager")
task.model.compile(fullgraph=True, backend=counter)
for step in range(3):
    found = loss(step)
    found.backward()
    torch.testing.assert_close(found, expected[step])
operators = [str(n.target) for g in counter.graphs for n in g.graph.nodes]
assert counter.frame_count == 1, counter.frame_count
assert sum("triton_causal" in name for name in operators) == 2, operators
assert sum("dropout" in name for name in operators) == 1 + 3 * 2, operators
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
