"""What a run measures of itself, and when it stops itself."""

from functools import partial

import pytest
import torch

from linear_transformers.callbacks import performance as measure
from linear_transformers.data import ImageShape, SpeechShape
from linear_transformers.models import BiLstm, SpeechEncoder
from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.tasks import SpeechRecognition
from linear_transformers.tasks.loading import build_task
from linear_transformers.training import peaks
from tests.catalogue import TRANSFORMERS
from tests.conftest import TINY, configured
from tests.programs import QUICK, complaint, figures, read_back, run, wandb_runs


@pytest.mark.parametrize("accumulated", [1, 3])
def test_tokens_a_second_count_every_batch_and_all_the_time(tmp_path, monkeypatch, accumulated):
    """Each look at the clock is a second after the last one: once a figure, once a restart."""
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(seconds))
    run(
        "train", *QUICK, f"paths.runs={tmp_path}", "run_id=a", "trainer.limit_train_batches=12",
        "trainer.log_every_n_steps=2", f"trainer.accumulate_grad_batches={accumulated}",
    )  # fmt: skip
    found = figures(tmp_path / "a", "perf/tokens_per_second")
    per_figure = 2 * accumulated * 32 * 64
    assert found == [per_figure] * (6 // accumulated)
    norms = figures(tmp_path / "a", "train/gradient_norm")
    assert len(norms) == len(found)
    assert min(norms) > 0


def test_a_run_that_logs_no_steps_measures_none(tmp_path):
    run("train", *QUICK, f"paths.runs={tmp_path}", "run_id=a", "trainer.log_every_n_steps=0")
    assert figures(tmp_path / "a", "perf/tokens_per_second") == []
    assert len(figures(tmp_path / "a", "perf/seconds_per_epoch")) == 1


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("64-true", torch.float64), ("32-true", torch.float32), ("bf16-mixed", torch.bfloat16)],
)
def test_a_peak_is_that_of_the_runs_precision(monkeypatch, precision, dtype):
    found = []
    monkeypatch.setattr(peaks, "PEAK_SIZE", {"cpu": 2})
    make = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *x, **y: found.append(y["dtype"]) or make(*x, **y))
    assert peaks.peak_flops(torch.device("cpu"), precision) > 0
    assert found == 2 * [dtype]


def test_an_epoch_that_the_last_step_ends_within_has_no_time(tmp_path):
    run(
        "train", *QUICK, f"paths.runs={tmp_path}", "run_id=a", "trainer.max_epochs=-1",
        "trainer.max_steps=5", "trainer.limit_train_batches=3", "scheduler=constant", "test=false",
    )  # fmt: skip
    assert len(figures(tmp_path / "a", "perf/seconds_per_epoch")) == 1


def test_a_run_that_diverges_stops_saves_nothing_bad_and_is_marked_as_failed(tmp_path):
    message = complaint(
        "train", *QUICK, f"paths.runs={tmp_path}", "run_id=a", "optimizer=adamw",
        "optimizer.lr=1e30", "scheduler=constant", "trainer.max_epochs=5",
        "trainer.limit_train_batches=3", "logger=wandb",
    )  # fmt: skip
    assert "train/loss is not finite" in message
    assert "debug=anomaly" in message
    for path in (tmp_path / "a/checkpoints").iterdir():
        weights = read_checkpoint(path)["state_dict"].values()
        assert all(weight.isfinite().all() for weight in weights)
    assert read_back(wandb_runs(tmp_path)[0])["exit"][0]["exit_code"] == 1


@pytest.mark.parametrize(("attention", "growth"), [("linear", 1.0), ("softmax", 2.0)])
def test_a_models_arithmetic_is_counted(attention, growth):
    """Six operations a weight and token, and what attention adds to that."""
    cfg = configured(*TINY, f"model={attention}", "model.activation_checkpointing=true")
    attending = []
    for height in (16, 32):
        task = build_task(cfg.task, cfg.model, ImageShape(height, 16, 1, 17))
        products = [m for m in task.model.modules() if isinstance(m, torch.nn.Linear)]
        dense = 6 * sum(m.weight.numel() for m in products)
        attending.append(measure.training_flops_per_token(task) - dense)
    assert attending[0] > 0
    assert attending[1] / attending[0] == pytest.approx(growth, rel=0.02)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_models_arithmetic_can_be_counted_without_computing(name):
    job = configured(*TINY, f"model={name}")
    task = build_task(job.task, job.model, ImageShape(8, 8, 1, 17))
    products = [m for m in task.model.modules() if isinstance(m, torch.nn.Linear)]
    dense = 6 * sum(m.weight.numel() for m in products)
    assert measure.training_flops_per_token(task) >= dense


@pytest.mark.parametrize("kernel", ["cpp", "triton"])
def test_arithmetic_is_that_of_products_whatever_kernel_is_asked_for(kernel):
    """Compiled kernels count none, and do not run on shapes alone."""
    counted = []
    for name in ("chunkwise", kernel):
        job = configured(*TINY, "model=linear", f"model.mixer.attention.kernel={name}")
        task = build_task(job.task, job.model, ImageShape(8, 8, 1, 17))
        counted.append(measure.training_flops_per_token(task))
    assert counted[0] == counted[1]


def test_peak_memory_is_in_bytes():
    assert 50e6 < measure.peak_memory(torch.device("cpu")) < 1e12


def test_an_lstms_arithmetic_is_counted():
    """Each way and layer, four gates of what comes and what is remembered; six operations each."""
    task = SpeechRecognition(
        SpeechShape(4, 16000, "phones", ("A", "B", "C")),
        partial(BiLstm, num_layers=2, hidden_dim=16), encoder=SpeechEncoder,
    )  # fmt: skip
    lstm = 2 * 4 * 16 * (16 + 16) + 2 * 4 * 16 * (32 + 16)
    outside = sum(m.weight.numel() for m in task.model.modules() if isinstance(m, torch.nn.Linear))
    # An output for four frames; convolutions come on top.
    counted = measure.training_flops_per_token(task)
    assert counted > 0.95 * 6 * (lstm + outside) / 4
