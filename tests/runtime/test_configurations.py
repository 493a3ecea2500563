"""Every choice that the command line offers is composed, built and run."""

import shutil
from dataclasses import fields
from inspect import signature

import numpy as np
import pytest
import torch
from lightning import Trainer

from linear_transformers.data import ImageShape, Shape, SpeechShape
from linear_transformers.data.sequences import to_sequences
from linear_transformers.data.speech.labels import PHONES
from linear_transformers.runtime import nodes
from linear_transformers.runtime.build import build_data, build_task
from linear_transformers.shapes import SpeechBatch
from tests.conftest import CONF, TINY, TRANSFORMERS, composed, configured
from tests.data.test_images import write_mnist
from tests.programs import QUICK, figures, run, run_apart, wandb_runs


def named(group: str) -> list[str]:
    """The choices of a group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


EXPERIMENTS = sorted(
    str(path.relative_to(CONF / "experiment").with_suffix(""))
    for path in (CONF / "experiment").rglob("*.yaml")
)


def one_step(cfg, shape: Shape, batch: torch.Tensor | SpeechBatch | None = None) -> float:
    """A training step with the configured optimizer, without Lightning's machinery."""
    task = build_task(cfg, shape)
    task.log = lambda *_, **__: None
    optimizer = task.make_optimizer(task.model.parameters())
    task.make_scheduler(optimizer, 100)
    if batch is None:
        batch = torch.randint(0, shape.num_values, (1, shape.length), dtype=torch.uint8)
    loss = task.training_step(batch, 0)
    loss.backward()
    optimizer.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.parameters())
    return loss.item()


def spoken() -> SpeechBatch:
    """Two utterances of noise."""
    features, lengths = torch.randn(2, 90, 40), torch.tensor([90, 70])
    return SpeechBatch(
        features, lengths, torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([3, 2])
    )


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_is_composed_built_and_run_for_a_step(experiment):
    where = ["data.path=WSJ"] if experiment.startswith("paper/speech/") else []
    cfg = configured(f"experiment={experiment}", *where)
    if experiment.startswith("paper/copy/"):
        assert (cfg.model.num_layers, cfg.model.num_heads, cfg.data.max_length) == (4, 8, 128)
        assert (cfg.data.num_symbols, cfg.data.batch_size, cfg.optimizer.lr) == (10, 64, 1e-3)
        assert (cfg.scheduler.at, cfg.scheduler.factor) == (3000, 0.1)
    elif experiment.startswith("paper/speech/"):
        assert (cfg.data.num_mels, cfg.task.encoder.subsampling) == (40, 1)
        if experiment.endswith("bilstm"):
            assert (cfg.model.num_layers, cfg.model.hidden_dim, cfg.optimizer.lr) == (3, 320, 1e-3)
        else:
            assert (cfg.model.num_layers, cfg.model.num_heads, cfg.model.model_dim) == (9, 6, 192)
            assert (cfg.model.causal, cfg.optimizer.lr, cfg.scheduler.factor) == (False, 1e-4, 0.5)
    elif experiment.startswith("paper/"):
        assert cfg.model.num_layers == {"MNIST": 8, "CIFAR10": 16}[cfg.data.dataset]
        assert (cfg.model.num_heads, cfg.model.model_dim) == (8, 256)
        assert cfg.task.distribution.num_components == 10
    cfg.model.num_layers = 1
    if "encoder" in cfg.task:
        assert np.isfinite(one_step(cfg, SpeechShape(40, 16000, "phones", PHONES), spoken()))
    elif cfg.data._target_.endswith("Copies"):
        cfg.data.num_sequences = cfg.data.num_held_out = 2
        data = build_data(cfg)
        assert np.isfinite(one_step(cfg, data.shape, to_sequences(data.splits.train)))
    else:
        assert np.isfinite(one_step(cfg, build_data(cfg).shape))


@pytest.mark.parametrize(
    "argument",
    [
        *(f"optimizer={name}" for name in ("radam", "adam", "adamw")),
        *(f"scheduler={name}" for name in ("constant", "warmup_cosine", "step_down", "on_plateau")),
        *(f"task/distribution={name}" for name in ("logistic_mixture", "categorical")),
        *(f"model.positions={name}" for name in ("concatenated", "added", "learned", "none")),
        *(f"model={name}" for name in TRANSFORMERS),
        *(f"model/feature_map={name}" for name in named("model/feature_map")),
        "model.norm=post", "model.activation=gelu", "model.activation_checkpointing=true",
        "model.attention.scale=0.5",
    ],
)  # fmt: skip
def test_every_choice_trains(argument):
    assert np.isfinite(one_step(configured(*TINY, argument), ImageShape(8, 8, 1, 17)))


@pytest.mark.parametrize("group", ["trainer", "callbacks", "logger", "debug"])
def test_every_choice_composes_and_is_valid(group):
    for path in (CONF / group).glob("*.yaml"):
        cfg = configured(f"{group}={path.stem}")
        assert all("_target_" in node for node in (cfg.trainer, *cfg.callbacks.values()))
        assert set(cfg.callbacks) >= {"best", "last", "performance", "progress"}


def test_a_choice_on_the_command_line_wins_over_the_data_sets():
    assert "warmup_cosine" in composed("data=digits").scheduler._target_
    assert "constant" in composed("data=digits", "scheduler=constant").scheduler._target_
    cfg = composed("data=cifar10", "model.num_layers=3")
    assert (cfg.model.num_layers, cfg.optimizer.lr) == (3, 2e-4)


def test_lightnings_options_work_together(tmp_path):
    """Mixed precision, accumulation, clipping, moving average, checkpointing, CSV, in one run."""
    run(
        "train", *QUICK, f"paths.runs={tmp_path}", "run_id=all", "trainer.precision=bf16-mixed",
        "trainer.accumulate_grad_batches=2", "trainer.limit_train_batches=4", "logger=csv",
        "trainer.gradient_clip_val=0.5", "callbacks=ema", "model.activation_checkpointing=true",
    )  # fmt: skip
    assert list((tmp_path / "all/csv").rglob("metrics.csv"))
    checkpoint = torch.load(tmp_path / "all/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 2
    averaged, current = checkpoint["state_dict"], checkpoint["current_model_state"]
    assert any(not torch.equal(averaged[name], current[name]) for name in averaged)


def test_torch_compile_trains(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU, and there is no g++ here")
    # In a process of its own: the shape checks of this one would break the compiler.
    printed = run_apart("train", *QUICK, f"paths.runs={tmp_path}", "compile=true")
    assert "test bits/dim" in printed


def test_mnist_trains_from_files_in_a_folder(tmp_path):
    write_mnist(tmp_path)
    data = ("data=mnist", f"data.root={tmp_path}", "data.val_size=5")
    printed = run("train", *QUICK, f"paths.runs={tmp_path}/runs", *data)
    assert "28 x 28 x 1, 256 levels: sequences of 784" in printed


def test_a_users_own_colour_images_train(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=images, x_test=images)
    data = ("data=arrays", f"data.path={tmp_path}/own.npz", "data.val_size=5")
    printed = run("train", *QUICK, f"paths.runs={tmp_path}/runs", *data)
    assert "6 x 5 x 3, 256 levels: sequences of 90" in printed


@pytest.mark.parametrize("debug", sorted(path.stem for path in (CONF / "debug").glob("*.yaml")))
def test_every_debug_choice_runs(debug, tmp_path):
    short = ("trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1")
    printed = run("train", *TINY, "trainer=cpu", f"debug={debug}", *short, f"paths.runs={tmp_path}")
    assert "test bits/dim" in printed


def test_a_batch_can_be_learned_by_heart(tmp_path):
    """debug=overfit, as one uses it: the one batch costs far less than images never seen."""
    run(
        "train", "debug=overfit", "model.num_layers=2", "trainer=cpu", "trainer.max_epochs=150",
        "test=false", "run_id=heart", f"paths.runs={tmp_path}", "data.batch_size=4",
    )  # fmt: skip
    train = figures(tmp_path / "heart", "train/bits_per_dim")
    val = figures(tmp_path / "heart", "val/bits_per_dim")
    assert train[-1] < 0.7 * min(train[0], val[-1])


def test_the_rate_falls_on_a_plateau_of_validations(tmp_path):
    """digits validate every second epoch; a missing figure must neither crash nor count."""
    run(
        "train", *TINY, "trainer=cpu", "scheduler=on_plateau", "scheduler.patience=0", "test=false",
        "optimizer.lr=1e-7", "trainer.max_epochs=6", "trainer.limit_train_batches=1",
        "trainer.log_every_n_steps=1", "run_id=flat", f"paths.runs={tmp_path}",
    )  # fmt: skip
    # The first validation sets the mark, the second does not better it.
    rates = figures(tmp_path / "flat", "lr-RAdam")
    assert rates == [1e-7, 1e-7, 1e-7, 1e-7, 5e-8, 5e-8]


def test_a_run_can_be_limited_by_time_alone(tmp_path):
    printed = run(
        "train", *TINY, "trainer=cpu", "scheduler=constant", "trainer.max_epochs=-1",
        "trainer.max_time=00:00:00:02", f"paths.runs={tmp_path}",
    )  # fmt: skip
    assert "test bits/dim" in printed


def test_two_processes_train_and_leave_one_run(tmp_path):
    """And their test figure is that of one process over the same 180 images, each seen once."""
    both, alone = tmp_path / "both", tmp_path / "alone"
    whole_test = "trainer.limit_test_batches=null"
    run_apart(
        "train", *TINY, "debug=step", f"paths.runs={both}", "run_id=two", whole_test,
        "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "logger=wandb",
    )  # fmt: skip
    assert [path.name for path in both.iterdir()] == ["two"]
    assert len(wandb_runs(both)) == 1  # the first process's
    run(
        "train", *QUICK, f"paths.runs={alone}", "run_id=one", whole_test,
        "train=false", f"ckpt_path={both}/two",
    )  # fmt: skip
    (two,) = figures(both / "two", "test/bits_per_dim")
    (one,) = figures(alone / "one", "test/bits_per_dim")
    assert two == pytest.approx(one, rel=1e-5)


def test_every_option_of_the_trainer_is_lightnings():
    names = {field.name for field in fields(nodes.Trainer)} - {"_target_"}
    assert names <= set(signature(Trainer).parameters)
