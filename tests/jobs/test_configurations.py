"""Every choice that the command line offers is composed, built and run."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir

from linear_transformers.config.choices import Choice
from linear_transformers.data import CopyShape, ImageShape, Shape, SpeechShape
from linear_transformers.data.sequences import to_sequences
from linear_transformers.data.speech.labels import PHONES
from linear_transformers.jobs import trainer
from linear_transformers.jobs.options import TrainJob
from linear_transformers.ops import precision
from linear_transformers.shapes import SpeechBatch
from linear_transformers.tasks.loading import build_task
from tests.catalogue import TRANSFORMERS
from tests.conftest import CONF, TINY, composed, configured
from tests.files import write_mnist
from tests.programs import QUICK, figures, run, run_apart, wandb_runs


def named(group: str) -> list[str]:
    """The choices of a group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


EXPERIMENTS = sorted(
    str(path.relative_to(CONF / "experiment").with_suffix(""))
    for path in (CONF / "experiment").rglob("*.yaml")
)


def one_step(job: TrainJob, shape: Shape, batch: Any = None) -> float:
    """A training step with the configured optimizer, without Lightning's machinery."""
    task = build_task(job.task, job.model, shape)
    optimizer = job.optimizer(task.model.named_parameters())
    job.scheduler(optimizer, 100)
    if batch is None:
        batch = torch.randint(0, shape.num_values, (1, shape.length), dtype=torch.uint8)
    loss = task.loss(batch).mean
    loss.backward()
    optimizer.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.model.parameters())
    return loss.item()


def spoken() -> SpeechBatch:
    """Two utterances of noise."""
    features, lengths = torch.randn(2, 90, 40), torch.tensor([90, 70])
    return SpeechBatch(
        features, lengths, torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([3, 2])
    )


def rows() -> list[tuple[str, str]]:
    """Return every experiment with every model that it is swept over, or its own."""
    found = []
    for name in EXPERIMENTS:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("train", [f"experiment={name}"], return_hydra_config=True)
        swept = (cfg.hydra.sweeper.params or {}).get("model", "default")
        found += [(name, model) for model in swept.split(",")]
    return found


@pytest.mark.parametrize(("experiment", "model"), rows())
def test_every_experiment_is_composed_built_and_run_for_a_step(experiment, model, tmp_path):
    where = ["data.path=WSJ"] if experiment.startswith("paper/speech") else []
    if experiment == "paper/transformer/base":
        pairs = tmp_path / "pairs.tsv"
        pairs.write_text("A dog runs.\tEin Hund läuft.\n" * 30)
        where = [f"data.train={pairs}", f"data.test={pairs}"]
    chosen = [] if model == "default" else [f"model={model}"]
    config = composed(f"experiment={experiment}", *chosen, *where)
    layers = config["model"]
    if experiment == "paper/copy":
        assert (layers["num_layers"], layers["num_heads"]) == (4, 8)
        assert (config["data"]["max_length"], config["data"]["num_symbols"]) == (128, 10)
        assert (config["data"]["batch_size"], config["optimizer"]["lr"]) == (64, 1e-3)
        assert (config["scheduler"]["at"], config["scheduler"]["factor"]) == (3000, 0.1)
    elif experiment == "paper/speech_bilstm":
        assert (layers["num_layers"], layers["hidden_dim"]) == (3, 320)
        assert config["optimizer"]["_target_"] == "torch.optim.Adam"
        assert config["optimizer"]["lr"] == 1e-3
        assert config["task"]["encoder"]["subsampling"] == 1
    elif experiment == "paper/speech":
        assert (layers["num_layers"], layers["num_heads"], layers["model_dim"]) == (9, 6, 192)
        assert (layers["causal"], config["optimizer"]["lr"]) == (False, 1e-4)
        assert config["task"]["encoder"]["subsampling"] == 1
    elif experiment == "paper/transformer/base":
        numbers = ("num_layers", "num_heads", "model_dim", "dropout", "norm", "positions")
        assert [layers[name] for name in numbers] == [6, 8, 512, 0.1, "post", "added"]
        assert config["task"]["label_smoothing"] == 0.1
        assert config["optimizer"]["lr"] == pytest.approx(512**-0.5 * 4000**-0.5, rel=1e-3)
        assert (config["optimizer"]["betas"], config["optimizer"]["eps"]) == ([0.9, 0.98], 1e-9)
        assert config["scheduler"]["warmup"] == 4000
    elif experiment.startswith("paper/"):
        assert layers["num_layers"] == {"paper/mnist": 8, "paper/cifar10": 16}[experiment]
        assert (layers["num_heads"], layers["model_dim"]) == (8, 256)
        assert config["task"]["distribution"]["num_components"] == 10
        if model.startswith("reformer"):
            chunk = {"paper/mnist": 29, "paper/cifar10": 37}[experiment]
            attention = layers["mixer"]["attention"]
            assert (attention["num_buckets"], attention["chunk"]) == (64, chunk)
    short = ["model.num_layers=2"]
    if config["data"]["_target_"].endswith("Copies"):
        short += ["data.num_sequences=2", "data.num_held_out=2"]
    job = configured(f"experiment={experiment}", *chosen, *where, *short)
    if experiment == "paper/transformer/base":
        data = job.data()
        assert np.isfinite(one_step(job, data.shape, next(iter(data.loader("train")))))
    elif "encoder" in config["task"]:
        assert np.isfinite(one_step(job, SpeechShape(40, 16000, "phones", PHONES), spoken()))
    elif config["data"]["_target_"].endswith("Copies"):
        data = job.data()
        assert np.isfinite(one_step(job, data.shape, to_sequences(data.splits.train)))
    else:
        assert np.isfinite(one_step(job, job.data().shape))


@pytest.mark.parametrize(
    "argument",
    [
        *(f"optimizer={name}" for name in ("radam", "adam", "adamw", "muon")),
        *(f"scheduler={name}" for name in named("scheduler")),
        *(f"task/distribution={name}" for name in ("logistic_mixture", "categorical")),
        *(f"model.positions={name}" for name in ("concatenated", "added", "learned", "none")),
        *(f"model={name}" for name in TRANSFORMERS),
        *(f"model=linear model/feature_map={name}" for name in named("model/feature_map")),
        "model.norm=post", "model.activation=gelu", "model.activation_checkpointing=true",
        "model=linear model.mixer.attention.scale=0.5",
    ],
)  # fmt: skip
def test_every_choice_trains(argument):
    assert np.isfinite(one_step(configured(*TINY, *argument.split()), ImageShape(8, 8, 1, 17)))


@pytest.mark.parametrize("group", ["trainer", "callbacks", "logger", "debug"])
def test_every_choice_composes_and_is_valid(group):
    for name in named(group):
        job = configured(f"{group}={name}")
        assert all(isinstance(choice, Choice) for choice in (job.trainer, *job.callbacks.values()))
        assert set(job.callbacks) >= {"best", "last", "performance", "progress"}


def test_a_choice_on_the_command_line_wins_over_the_data_sets():
    assert "warmup_cosine" in composed("data=digits")["scheduler"]["_target_"]
    assert "constant" in composed("data=digits", "scheduler=constant")["scheduler"]["_target_"]
    config = composed("data=cifar10", "model.num_layers=3")
    assert (config["model"]["num_layers"], config["optimizer"]["lr"]) == (3, 2e-4)


@pytest.mark.parametrize(
    ("words", "shape", "window"),
    [
        ("data=digits model=hybrid", ImageShape(8, 8, 1, 17), 16),
        ("data=mnist data.size=14 model=hybrid", ImageShape(14, 14, 1, 256), 28),
        ("data=folder data.path=.", ImageShape(3, 5, 3, 256), 30),
        ("data=arrays data.path=. model.local.attention.window=9", ImageShape(3, 5, 3, 256), 9),
        ("data=copy model=hybrid", CopyShape(128, 10), 128),
    ],
)
def test_windows_of_images_are_two_rows_of_theirs(words, shape, window):
    job = configured(*TINY, *words.split())
    mixers = build_task(job.task, job.model, shape).model.stack.mixers
    assert [mixer.attention.window for mixer in mixers if mixer.name == "WindowAttention"] == [
        window
    ]


def test_lightnings_options_work_together(tmp_path):
    """Mixed precision, accumulation, clipping, moving average and checkpointing, in one run."""
    run(
        "train", *QUICK, f"paths.runs={tmp_path}", "run_id=all", "trainer.precision=bf16-mixed",
        "trainer.accumulate_grad_batches=2", "trainer.limit_train_batches=4",
        "trainer.gradient_clip_val=0.5", "callbacks=ema", "model.activation_checkpointing=true",
    )  # fmt: skip
    checkpoint = torch.load(tmp_path / "all/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 2
    averaged, current = checkpoint["state_dict"], checkpoint["current_model_state"]
    assert any(not torch.equal(averaged[name], current[name]) for name in averaged)


@pytest.mark.parametrize(("low", "chosen"), [(True, "bf16-mixed"), (False, "32-true")])
def test_the_precision_is_what_the_device_is_fast_in(tmp_path, monkeypatch, low, chosen):
    """The first lines say it, and the checkpoint has what ran."""
    monkeypatch.setattr(trainer, "faster_in_bfloat16", lambda device: low)
    printed = run("train", *QUICK, f"paths.runs={tmp_path}", "run_id=a")
    assert f"precision {chosen}\n" in printed
    checkpoint = torch.load(tmp_path / "a/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["config"]["trainer"]["precision"] == chosen


@pytest.mark.parametrize(
    ("known", "name", "low"),
    [
        ({"avx512_bf16": True}, "AMD EPYC 9B45", True),
        ({"avx512_bf16": True}, "AMD64 Family 25 Model 97, AuthenticAMD", True),  # on Windows
        ({"avx512_bf16": True}, "Intel(R) Xeon(R) Processor", False),
        ({"amx_bf16": True, "avx512_bf16": True}, "Intel(R) Xeon(R) Processor", True),
        ({"avx2": True}, "AMD EPYC 7763", False),
        ({}, "arm64", False),
    ],
)
def test_bfloat16_is_for_processors_that_are_faster_in_it(monkeypatch, known, name, low):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    monkeypatch.setattr(precision, "processor", lambda: name)
    assert precision.faster_in_bfloat16.__wrapped__(torch.device("cpu")) is low


def test_torch_compile_trains(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU, and there is no g++ here")
    # In a process of its own: the shape checks of this one would break the compiler.
    small = (*QUICK, "model.num_layers=1")
    printed = run_apart("train", *small, f"paths.runs={tmp_path}", "compile=true")
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


@pytest.mark.parametrize("debug", ["step", "overfit"])
def test_a_run_that_validates_by_steps_can_be_debugged(debug):
    """Its interval is longer than the epochs of a run that is debugged."""
    trainer = composed("experiment=mnist/small", f"debug={debug}")["trainer"]
    assert trainer["val_check_interval"] is None
    assert trainer["check_val_every_n_epoch"] > 0


@pytest.mark.parametrize("debug", named("debug"))
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
        "optimizer=radam", "optimizer.lr=1e-7", "trainer.max_epochs=6",
        "trainer.limit_train_batches=1", "trainer.log_every_n_steps=1", "run_id=flat",
        f"paths.runs={tmp_path}",
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


def test_two_processes_leave_one_run(tmp_path):
    run_apart(
        "train", *QUICK, "trainer=ddp_cpu", f"paths.runs={tmp_path}", "run_id=two", "logger=wandb"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["two"]
    assert len(wandb_runs(tmp_path)) == 1  # the first process's
