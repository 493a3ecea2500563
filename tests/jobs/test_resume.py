"""A run that was stopped goes on as if it had not been."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch

from linear_transformers.provenance import read_provenance
from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.training.module import Training
from tests.faults.test_stopping import signal_at
from tests.programs import QUICK, check_same_bits, complaint, figures, forge, metrics, run

TWO_STEPS = (*QUICK, "trainer.limit_train_batches=2", "model.dropout=0.2", "scheduler=constant")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two epochs, not interrupted."""
    runs = tmp_path_factory.mktemp("whole")
    run("train", *TWO_STEPS, f"paths.runs={runs}", "run_id=whole", "trainer.max_epochs=2")
    return runs / "whole"


@pytest.fixture
def half(tmp_path):
    """The same run, stopped after its first epoch."""
    run("train", *TWO_STEPS, f"paths.runs={tmp_path}", "run_id=half", "trainer.max_epochs=1")
    return tmp_path / "half"


def continued(half, *arguments: str) -> None:
    run(
        "train", *TWO_STEPS, f"paths.runs={half.parent}", "run_id=half", "resume=half",
        "trainer.max_epochs=2", *arguments,
    )  # fmt: skip


def test_a_resumed_run_ends_with_the_same_weights_to_the_bit(whole, half):
    continued(half)
    assert check_same_bits(half, whole)["global_step"] == 4
    assert figures(half, "train/bits_per_dim") == figures(whole, "train/bits_per_dim")


SPEECH = (
    "data=espeak", "data.num_train=24", "data.num_val=3", "data.num_test=3",
    "data.batch_frames=900", "data.speeds=[0.9,1.1]", "trainer=cpu", "logger=none", "test=false",
    "trainer.max_epochs=2", "trainer.log_every_n_steps=1", "scheduler=constant",
    "model.num_layers=1", "model.num_heads=2", "model.model_dim=16",
)  # fmt: skip
IMAGES = (
    *TWO_STEPS, "trainer.max_epochs=2", "trainer.limit_train_batches=6", "test=false",
    "trainer.accumulate_grad_batches=2", "data.batch_size=8",
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "last"),
    [(IMAGES, 10), (SPEECH, 17)],
    ids=["images", "speech"],
)
def test_a_run_stopped_within_an_epoch_ends_with_the_same_weights(
    tmp_path, monkeypatch, arguments, last
):
    """Images with accumulated gradients, speech in batches of like length at changing speeds."""
    places = (f"paths.runs={tmp_path}/runs", f"paths.data={tmp_path}/data")
    run("train", *arguments, *places, "run_id=whole")
    step, batches = Training.training_step, iter(range(1, last + 1))

    def stopping(self, *batch):
        if next(batches) == last:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "training_step", stopping)
        with pytest.raises(SystemExit) as stopped:
            run("train", *arguments, *places, "run_id=part")
    assert stopped.value.code == 143
    whole, part = (tmp_path / "runs" / name for name in ("whole", "part"))
    stopped_at = read_checkpoint(part / "checkpoints/last.ckpt")["global_step"]
    run("train", *arguments, *places, "run_id=part", "resume=part")
    steps = check_same_bits(part, whole)["global_step"]
    assert stopped_at % (steps // 2), "not within an epoch"


@pytest.mark.parametrize(
    ("interval", "batches"), [("0.5", "3 of 6"), ("3", "3 of 6"), ("2 across", "2 of 5")]
)
def test_validations_between_the_batches_of_a_step_are_refused(tmp_path, interval, batches):
    """The gradients so far are in no checkpoint."""
    number, *across = interval.split()
    arguments = [*IMAGES, f"paths.runs={tmp_path}", f"trainer.val_check_interval={number}"]
    if across:
        arguments += ["trainer.check_val_every_n_epoch=null", "trainer.limit_train_batches=5"]
    message = complaint("train", *arguments)
    assert f"after {batches} batches" in message, message
    assert "accumulate_grad_batches=2" in message
    multiple = (*arguments, "trainer.val_check_interval=4", "trainer.limit_train_batches=8")
    run("train", *multiple, "run_id=multiple")
    run("train", *arguments, "run_id=unseen", "trainer.limit_val_batches=0", "~callbacks.best")


ENDS = {
    "steps": [f"trainer.max_steps={n}" for n in (6, 10, 15)],
    "steps of whole epochs": [f"trainer.max_steps={n}" for n in (4, 12, 15)],
    "epochs": [f"trainer.max_epochs={n}" for n in (1, 2, 4)],
}
SAVED_BY = {"epochs": (), "steps": ("callbacks.last.every_n_train_steps=2",)}


@pytest.mark.parametrize("saved", SAVED_BY)
@pytest.mark.parametrize("unit", ENDS)
def test_a_run_that_is_lengthened_has_the_weights_of_the_longest(tmp_path, unit, saved):
    """Whether or not it ended, or was saved, where an epoch of four batches ends."""
    words = (
        *QUICK, *SAVED_BY[saved], "trainer.max_epochs=-1", "trainer.limit_train_batches=4",
        "scheduler=constant", "data.num_train=64", "data.batch_size=8", "test=false",
        f"paths.runs={tmp_path}", "resume=auto",
    )  # fmt: skip
    run("train", *words, ENDS[unit][-1], "run_id=whole")
    for end in ENDS[unit]:
        run("train", *words, end, "run_id=parts")
    assert "finished" in run("train", *words, end, "run_id=parts")
    ours = check_same_bits(tmp_path / "parts", tmp_path / "whole")
    rows = metrics(tmp_path / "parts")
    steps = [row["step"] for row in rows if "val/bits_per_dim" in row]
    assert steps == [3, 7, 11, 15][: len(steps)]
    assert len(steps) == ours["global_step"] // 4


def test_a_longer_run_goes_on_after_an_epoch_that_was_not_validated(tmp_path):
    """With steps that bound it, too; and has all of its epochs."""
    words = (
        *QUICK, "trainer.limit_train_batches=4", "trainer.check_val_every_n_epoch=2",
        "scheduler=constant", "data.num_train=64", "data.batch_size=8", "test=false",
        "trainer.max_steps=99", f"paths.runs={tmp_path}", "resume=auto",
    )  # fmt: skip
    run("train", *words, "trainer.max_epochs=4", "run_id=whole")
    for epochs in (1, 4):
        run("train", *words, f"trainer.max_epochs={epochs}", "run_id=parts")
    assert check_same_bits(tmp_path / "parts", tmp_path / "whole")["global_step"] == 16


def test_other_batches_after_an_epoch_are_all_seen(tmp_path):
    whole = (*QUICK, "trainer.limit_train_batches=null", "scheduler=constant", "test=false")
    places = (f"paths.runs={tmp_path}", "run_id=half")
    run("train", *whole, *places, "trainer.max_epochs=1", "data.batch_size=200")
    before = read_checkpoint(tmp_path / "half/checkpoints/last.ckpt")["global_step"]
    longer = (*whole, *places, "resume=half", "data.batch_size=100")
    printed = run("train", *longer, "trainer.max_epochs=2")
    assert f"note     an epoch had {before} batches; now an epoch has " in printed
    after = read_checkpoint(tmp_path / "half/checkpoints/last.ckpt")["global_step"]
    assert after - before in (2 * before, 2 * before + 1)
    assert "an epoch had" not in run("train", *longer, "trainer.max_epochs=3")
    fewer = run("train", *longer, "trainer.max_epochs=4", "data.num_train=1410")
    assert "batches; now they are others" in fewer


@pytest.mark.parametrize("change", ["data.batch_size=32", "trainer.accumulate_grad_batches=4"])
def test_with_other_steps_an_epoch_the_rate_falls_until_the_end(tmp_path, change):
    """Of 4 epochs two have 8 steps, and two 2."""
    words = (
        *QUICK, "trainer.limit_train_batches=null", "trainer.log_every_n_steps=1", "test=false",
        "scheduler=warmup_cosine", "scheduler.warmup=0", "optimizer=radam", "data.num_train=64",
        "data.batch_size=8", f"paths.runs={tmp_path}", "run_id=other", "resume=auto",
    )  # fmt: skip
    run("train", *words, "trainer.max_epochs=2")
    assert "step 20/20" in run("train", *words, "trainer.max_epochs=4", change)
    (name,) = {name for row in metrics(tmp_path / "other") for name in row if name[:3] == "lr-"}
    rates = [*dict.fromkeys(figures(tmp_path / "other", name))][-4:]  # a row a batch
    assert rates[0] > 1.5 * rates[1] > 3 * rates[3] > 0


@pytest.mark.parametrize(
    ("before", "taken", "after", "steps"), [(1, 5, 4, 5 + 1 + 2), (3, 1, 2, 1 + 3 + 4)]
)
def test_within_the_first_epoch_the_steps_of_other_batches_count(
    tmp_path, before, taken, after, steps
):
    """What is left of an epoch of 8 batches is no whole number of those that are accumulated."""
    words = (
        *QUICK, "trainer.limit_train_batches=8", "trainer.max_epochs=2", "test=false",
        "scheduler=warmup_cosine", "data.num_train=64", "data.batch_size=8",
        f"paths.runs={tmp_path}", "run_id=other", "resume=auto",
    )  # fmt: skip
    run("train", *words, f"trainer.max_steps={taken}", f"trainer.accumulate_grad_batches={before}")
    printed = run("train", *words, f"trainer.accumulate_grad_batches={after}")
    assert f"step {steps}/{steps}" in printed


def test_a_run_that_was_moved_keeps_its_best_checkpoint(half):
    """Rates of 1 make the second epoch worse than the first: best.ckpt must stay."""
    moved = half.parent / "elsewhere" / "half"
    shutil.copytree(half, moved)
    shutil.rmtree(half)
    best = (moved / "checkpoints/best.ckpt").read_bytes()
    checkpoint = read_checkpoint(moved / "checkpoints/last.ckpt")
    for group in checkpoint["optimizer_states"][0]["param_groups"]:
        group["lr"] = 1.0
    torch.save(checkpoint, moved / "checkpoints/last.ckpt")
    continued(moved)
    first, second = figures(moved, "val/bits_per_dim")
    assert second > first
    assert (moved / "checkpoints/best.ckpt").read_bytes() == best


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("model.num_layers=3", ("model.num_layers=2", "model.num_layers=3")),
        ("model=gated_delta", ("model.mixer._target_", "GatedDeltaNet")),
        ("model=hybrid", ("no model.local._target_, this run has model.local._target_=",)),
        ("task/distribution=categorical", ("task.distribution",)),
    ],
)
def test_another_model_is_refused(whole, tmp_path, argument, words):
    arguments = (*TWO_STEPS, f"paths.runs={tmp_path}", f"resume={whole}", argument)
    message = complaint("train", *arguments)
    assert all(word in message for word in words), message
    (begun,) = read_provenance(whole)
    assert f"Its run was begun by: {begun['command']}" in message
    assert not list(tmp_path.iterdir())


def test_a_new_option_does_not_orphan_earlier_runs(half):
    """A checkpoint that does not know an option has its default."""
    path = half / "checkpoints/last.ckpt"
    checkpoint = read_checkpoint(path)
    del checkpoint["config"]["model"]["activation"]
    del checkpoint["config"]["task"]["distribution"]["min_log_scale"]
    forge(checkpoint, path)
    assert "activation=gelu" in complaint(
        "train", *TWO_STEPS, f"paths.runs={half.parent}", f"resume={half}",
        "model.activation=gelu",
    )  # fmt: skip
    continued(half)
    assert read_checkpoint(path)["config"]["model"]["activation"] == "relu"


def test_other_images_are_refused(whole, tmp_path):
    np.savez(
        tmp_path / "a.npz", **{f"x_{n}": np.ones((64, 6, 6), np.uint8) for n in ("train", "test")}
    )
    message = complaint(
        "train", *TWO_STEPS, f"paths.runs={tmp_path}/runs", f"resume={whole}", "data=arrays",
        f"data.path={tmp_path}/a.npz", "data.num_levels=17", "data.val_size=5",
    )  # fmt: skip
    assert "made for data of height=8" in message
    assert "these have height=6" in message


def test_the_pictures_and_the_record_of_the_first_part_are_kept(half):
    rows = metrics(half)
    before = {path: path.read_bytes() for path in half.rglob("*.png")}
    assert before
    continued(half)
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(half.rglob("grid.png"))) == 2
    assert metrics(half)[: len(rows)] == rows
    assert len(metrics(half)) > len(rows)


def test_a_timer_without_a_limit_ends_no_run(half):
    timer = "+callbacks.timer._target_=lightning.pytorch.callbacks.Timer"
    continued(half, timer)
    continued(half, timer, "trainer.max_epochs=3")
    assert read_checkpoint(half / "checkpoints/last.ckpt")["global_step"] == 6


def test_memory_can_be_saved_after_the_fact(half):
    continued(half, "model.activation_checkpointing=true")
    assert read_checkpoint(half / "checkpoints/last.ckpt")["global_step"] == 4


def test_a_single_checkpoint_can_be_tested_alone(whole, tmp_path):
    arguments = (
        *QUICK,
        f"paths.runs={tmp_path}",
        "run_id=test",
        "train=false",
        "scheduler=constant",
    )
    run("train", *arguments, "model.dropout=0.2", f"resume={whole}/checkpoints/best.ckpt")
    (figure,) = figures(tmp_path / "test", "test/bits_per_dim")
    assert figure == pytest.approx(figures(whole, "test/bits_per_dim")[-1], rel=1e-6)


def test_expressions_in_a_checkpoints_config_are_not_evaluated(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    checkpoint = read_checkpoint(whole / "checkpoints/best.ckpt")
    checkpoint["config"]["tags"] = ["${oc.env:SECRET}"]
    forge(checkpoint, tmp_path / "evil.ckpt")
    message = complaint("sample", f"ckpt={tmp_path}/evil.ckpt", f"out={tmp_path}/out")
    assert "interpolation" in message
    assert "hunter2" not in json.dumps(message)


def test_a_checkpoint_that_names_a_foreign_class_is_refused(whole, tmp_path):
    checkpoint = read_checkpoint(whole / "checkpoints/best.ckpt")
    checkpoint["config"]["model"]["mixer"]["_target_"] = "os.system"
    forge(checkpoint, tmp_path / "evil.ckpt")
    message = complaint("sample", f"ckpt={tmp_path}/evil.ckpt", f"out={tmp_path}/out")
    assert "os.system" in message
    assert "evil.ckpt" in message


def test_what_fails_within_an_epoch_goes_on_from_its_last_validation(tmp_path):
    """Not from its best one, nor from the start: an epoch may be all of a run."""
    words = (
        *QUICK, f"paths.runs={tmp_path}", "run_id=a", "resume=auto", "scheduler=constant",
        "optimizer=adamw", "trainer.limit_train_batches=6", "trainer.val_check_interval=2",
    )  # fmt: skip
    place = {"_target_": "tests.faults.places.FailAt", "step": 5, "rank": 0}
    failing = ("allow=[tests]", *(f"+callbacks.at.{key}={value}" for key, value in place.items()))
    assert "told to fail" in complaint("train", *words, *failing)
    last = tmp_path / "a/checkpoints/last.ckpt"
    assert read_checkpoint(last)["global_step"] == 4
    assert "last.ckpt" in complaint("train", *words, "optimizer.lr=1e30", "resume_optimizer=new")
    run("train", *words)
    assert read_checkpoint(last)["global_step"] == 6


def test_an_order_that_a_run_stopped_in_is_not_left_for_another(tmp_path):
    words = (*QUICK, f"paths.runs={tmp_path}", "run_id=a", "trainer.limit_train_batches=6")
    with pytest.raises(SystemExit):
        run("train", *words, "seed=1", *signal_at("train_batch_end", 3))
    message = complaint("train", *words, "seed=2", "resume=auto")
    assert "the order of seed=1" in message
    assert "seed=2 is another" in message
    run("train", *words, "seed=1", "resume=auto")
