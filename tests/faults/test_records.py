"""Our own files, damaged; numbers that are none; names that are taken; secrets."""

import json
import os
import re
import shlex
import shutil
import zipfile

import numpy as np
import pytest
import torch

from linear_transformers.config.messages import override
from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.runs.metrics import read_metrics
from tests.faults.test_stopping import signal_at
from tests.programs import QUICK, complaint, figures, forge, run, run_apart

EXPONENTIAL = ("scheduler=constant", "scheduler._target_=torch.optim.lr_scheduler.ExponentialLR")
FAST = (*QUICK, "optimizer=radam", "test=false", "~callbacks.samples")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of one step."""
    runs = tmp_path_factory.mktemp("runs")
    run("train", *FAST, f"paths.runs={runs}", "run_id=made")
    return runs / "made"


@pytest.fixture
def again(tmp_path, made):
    """A copy of that run, for tests that damage it."""
    return shutil.copytree(made, tmp_path / "a")


def resumed(folder, *words: str) -> str:
    places = (f"paths.runs={folder.parent}", f"run_id={folder.name}")
    return run("train", *FAST, "trainer.max_epochs=2", *places, *words)


def halve(path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_a_damaged_last_checkpoint_is_passed_over(again):
    halve(again / "checkpoints/last.ckpt")
    printed = resumed(again, "resume=auto")
    assert "last.ckpt is not a checkpoint, or only a part of one" in printed
    assert "best.ckpt, step 1" in printed
    assert read_checkpoint(again / "checkpoints/last.ckpt")["global_step"] == 2


def test_a_damaged_checkpoint_that_was_named_is_refused_with_the_whole_ones(again):
    halve(again / "checkpoints/last.ckpt")
    options = (*FAST, "trainer.max_epochs=2", f"paths.runs={again.parent}", "resume=a")
    message = complaint("train", *options)
    assert "last.ckpt is not a checkpoint" in message
    assert "best.ckpt" in message.partition("Whole beside it")[2]
    message = complaint(
        "sample", f"paths.runs={again.parent}", f"ckpt={again}/checkpoints/last.ckpt"
    )
    assert "Whole beside it" in message


def test_of_many_whole_checkpoints_four_are_named(again):
    for step in range(5):
        shutil.copy(again / "checkpoints/best.ckpt", again / f"checkpoints/step-{step}.ckpt")
    halve(again / "checkpoints/last.ckpt")
    message = complaint("sample", f"ckpt={again}/checkpoints/last.ckpt")
    assert message.count("step-") == 3
    assert message.rstrip().endswith(" and others.")


def test_a_last_checkpoint_of_something_else_is_passed_over(again):
    torch.save(
        {"config": {"model": {"x": torch.zeros(1)}}, "shape": {}, "state_dict": {}},
        again / "checkpoints/last.ckpt",
    )
    assert "is not a checkpoint of this project" in resumed(again, "resume=auto")


def test_weights_alone_cannot_be_resumed(again):
    path = again / "checkpoints/last.ckpt"
    for part in ("loops", "optimizer_states"):
        checkpoint = read_checkpoint(path)
        del checkpoint[part]
        forge(checkpoint, again / "weights.ckpt")
        options = (*FAST, f"paths.runs={again.parent}", f"resume={again}/weights.ckpt")
        assert f"init_from={again}/weights.ckpt" in complaint("train", *options)


def test_weights_that_do_not_fit_are_named_and_can_begin_a_run(again):
    path = again / "checkpoints/last.ckpt"
    checkpoint = read_checkpoint(path)
    del checkpoint["state_dict"]["model.head.weight"]
    forge(checkpoint, path)
    options = (*FAST, f"paths.runs={again.parent}", "run_id=a", "resume=auto")
    message = complaint("train", *options, "trainer.max_epochs=2")
    assert "head.weight" in message
    assert f"init_from={path}" in message


def test_a_damaged_configuration_is_named(again):
    (again / "config.yaml").write_text("model: [")
    message = complaint("sample", f"ckpt={again}")
    assert "config.yaml is damaged. Remove it" in message
    (again / "config.yaml").unlink()
    run("sample", f"ckpt={again}", "images=1")


def test_a_record_that_finds_no_room_is_one_line(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/metrics.jsonl").symlink_to("/dev/full")
    message = complaint("train", *FAST, f"paths.runs={tmp_path}", "run_id=a", "resume=auto")
    assert f"{tmp_path}: No space left on device" in message
    assert "are free there" in message


def test_a_run_of_damaged_checkpoints_alone_is_not_silently_begun_anew(again):
    for path in (again / "checkpoints").iterdir():
        os.truncate(path, 0)
    options = (*FAST, f"paths.runs={again.parent}", "run_id=a", "resume=auto")
    message = complaint("train", *options)
    assert "No checkpoint of" in message
    assert "Remove them" in message


def test_a_run_does_not_begin_with_a_checkpoint_at_its_end(again):
    words = (*FAST, f"paths.runs={again.parent}", "run_id=b", "resume=a")
    message = complaint("train", *words)
    assert "a/checkpoints/last.ckpt is at the end of its training, step 1" in message
    assert not (again.parent / "b").exists()
    run("train", *words, "trainer.max_epochs=2")


def test_a_finished_run_says_so(again):
    options = (*FAST, f"paths.runs={again.parent}", "run_id=a", "resume=auto")
    before = sorted(path.name for path in again.iterdir())
    assert "finished" in run("train", *options)
    assert sorted(path.name for path in again.iterdir()) == before


def test_a_torn_record_is_mended(again):
    with (again / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1')
    assert "the torn last line of metrics.jsonl was removed" in resumed(again, "resume=auto")
    lines = (again / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == read_metrics(again / "metrics.jsonl")


def test_damaged_ids_of_trackers_are_named_before_training(again):
    (again / "trackers.json").write_text("")
    options = (f"paths.runs={again.parent}", "run_id=a", "resume=auto", "trainer.max_epochs=2")
    message = complaint("train", *FAST, "logger=wandb", *options)
    assert "trackers.json is damaged. Remove it" in message


def test_a_cut_record_of_samples_is_named(made, tmp_path):
    words = (f"ckpt={made}", "images=2", f"out={tmp_path}/out")
    run("sample", *words)
    whole = (tmp_path / "out/samples.json").read_text()
    (tmp_path / "out/samples.json").write_text(whole.replace('"file"', '"fil"'))
    assert "samples.json is damaged" in complaint("sample", *words, "continue=true")
    (tmp_path / "out/samples.json").write_text(whole)
    halve(tmp_path / "out/samples.json")
    for more in ("continue=true", "overwrite=true"):
        assert "samples.json is damaged" in complaint("sample", *words, more)


def test_a_damaged_picture_is_drawn_again(made, tmp_path):
    words = (f"ckpt={made}", "images=3", f"out={tmp_path}/out")
    run("sample", *words)
    pictures = sorted((tmp_path / "out").glob("0*.png"))
    before = [path.read_bytes() for path in pictures]
    os.truncate(pictures[0], 0)
    halve(pictures[2])
    assert "2 damaged images are drawn again" in run("sample", *words, "continue=true")
    assert [path.read_bytes() for path in pictures] == before


@pytest.mark.parametrize("damage", ["flip", "claim"])
def test_a_damaged_file_of_images_is_named(tmp_path, damage):
    path = tmp_path / "a.npz"
    images = np.random.default_rng(0).integers(0, 9, (50, 8, 8), np.uint8)
    np.savez_compressed(path, x_train=images, x_test=images)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 3] ^= 16
        path.write_bytes(data)
    else:  # 10^12 images of nothing
        header = np.lib.format.header_data_from_array_1_0(images) | {"shape": (10**12, 8, 8)}
        with (tmp_path / "x.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("x_train", "x_test"):
                archive.write(tmp_path / "x.npy", f"{name}.npy")
    message = complaint("train", *QUICK, "data=arrays", f"data.path={path}", "data.val_size=5")
    assert "a.npz cannot be read as an .npz file" in message


@pytest.mark.parametrize("words", [(), ("trainer.gradient_clip_val=null",)])
def test_numbers_that_are_none_reach_no_checkpoint(again, words):
    options = (
        *FAST, f"paths.runs={again.parent}", "run_id=a", "resume=auto", "trainer.max_epochs=9",
        "resume_optimizer=keep", "scheduler=constant", "optimizer.lr=1e30", *words,
    )  # fmt: skip
    message = complaint("train", *options)
    assert "is not finite at step" in message
    assert "gradient norm" in message
    assert f"Last good checkpoint: {again}/checkpoints/last.ckpt" in message
    for path in (again / "checkpoints").glob("*.ckpt"):
        assert all(x.isfinite().all() for x in read_checkpoint(path)["state_dict"].values())


def test_a_signal_writes_no_nan_over_a_good_checkpoint(again):
    options = (
        *FAST, f"paths.runs={again.parent}", "run_id=a", "resume=auto", "trainer.max_epochs=9",
        "resume_optimizer=new", "scheduler=constant", "optimizer.lr=1e30",
        "trainer.limit_train_batches=9", "trainer.log_every_n_steps=1000",
        *signal_at("train_batch_end", 4),
    )  # fmt: skip
    before = (again / "checkpoints/last.ckpt").read_bytes()
    assert "is not finite" in complaint("train", *options)
    assert (again / "checkpoints/last.ckpt").read_bytes() == before


def test_weights_that_are_not_finite_are_neither_sampled_from_nor_tested(made, tmp_path):
    checkpoint = torch.load(made / "checkpoints/best.ckpt", weights_only=True)
    checkpoint["state_dict"]["model.head.weight"][0, 0] = torch.nan
    torch.save(checkpoint, tmp_path / "nan.ckpt")
    for words in (
        ("sample", f"ckpt={tmp_path}/nan.ckpt", f"out={tmp_path}/out"),
        ("train", *FAST, "train=false", "test=true", f"resume={tmp_path}/nan.ckpt"),
    ):
        assert "not finite numbers, in head.weight" in complaint(*words)


def test_environment_variables_are_used_and_not_written(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.setenv("PLACE", str(tmp_path / "runs"))
    run(
        "train", *FAST, "paths.runs=${oc.env:PLACE}", "run_id=a", "tags=['x-${oc.env:SECRET}']",
        "logger=tensorboard",
    )  # fmt: skip
    written = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert (tmp_path / "runs/a/config.yaml").is_file()
    assert not [path for path in written if b"hunter2" in path.read_bytes()]
    assert "x-<oc.env:SECRET>" in (tmp_path / "runs/a/config.yaml").read_text()
    run("sample", f"ckpt={tmp_path}/runs/a", "images=1")


def test_what_a_model_is_rebuilt_from_is_written_as_it_was_used(tmp_path, monkeypatch):
    monkeypatch.setenv("DROPOUT", "0.2")
    words = (*FAST, f"paths.runs={tmp_path}", "run_id=a", "model.dropout=${oc.env:DROPOUT}")
    run("train", *words)
    run("train", *words, "resume=auto", "trainer.max_epochs=2")
    assert "dropout: 0.2" in (tmp_path / "a/config.yaml").read_text()
    run("sample", f"ckpt={tmp_path}/a", "images=1")


def test_a_run_is_found_by_its_name_before_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    words = (*FAST, f"paths.runs={tmp_path}/runs", "run_id=results")
    run("train", *words)
    printed = run("train", *words, "resume=results", "trainer.max_epochs=2")
    assert "resume   runs/results/checkpoints/last.ckpt, step 1" in printed
    run("sample", f"paths.runs={tmp_path}/runs", "ckpt=results", "images=1")
    assert list((tmp_path / "runs/results/samples").glob("**/*.png"))
    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize("folder", ["plain", "with space", "it's"])
def test_the_next_command_works_when_pasted(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    printed = run("train", *QUICK, override("paths.runs", tmp_path / folder), "run_id=a")
    (line,) = [line for line in printed.splitlines() if line.startswith("next")]
    _, uv, verb, program, *words = shlex.split(line)
    assert (uv, verb, os.path.basename(program)) == ("uv", "run", "sample.py")  # noqa: PTH119
    run("sample", *words, "images=1")


def test_another_rate_is_refused_or_taken_on_purpose(again):
    options = ("resume=auto", "optimizer.lr=1e-5", "scheduler=constant")
    base = (*FAST, f"paths.runs={again.parent}", "run_id=a", "trainer.max_epochs=2")
    message = complaint("train", *base, *options)
    assert "optimizer.lr=0.003, this run has optimizer.lr=1e-05" in message
    assert "resume_optimizer=keep" in message
    run("train", *base, *options, "resume_optimizer=keep", "optimizer.betas=[0.8,0.9]")
    (state,) = read_checkpoint(again / "checkpoints/last.ckpt")["optimizer_states"]
    group = state["param_groups"][0]
    assert (group["lr"], list(group["betas"])) == (1e-5, [0.8, 0.9])
    assert {float(s["step"]) for s in state["state"].values()} == {2.0}
    new = (*base, "resume=auto", "trainer.max_epochs=3", "resume_optimizer=new", "optimizer=adamw")
    run("train", *new)
    (state,) = read_checkpoint(again / "checkpoints/last.ckpt")["optimizer_states"]
    assert {float(s["step"]) for s in state["state"].values()} == {1.0}
    assert len(figures(again, "lr-AdamW")) == 1
    run("train", *new, "trainer.max_epochs=4")  # as a scheduler would: what changes has changed
    (state,) = read_checkpoint(again / "checkpoints/last.ckpt")["optimizer_states"]
    assert {float(s["step"]) for s in state["state"].values()} == {2.0}
    more = (*new, "trainer.max_epochs=5", "optimizer.amsgrad=true")
    message = complaint("train", *more, "resume_optimizer=keep")
    assert "none of the moments that optimizer.amsgrad goes by" in message
    run("train", *more)


def test_the_moments_are_kept_where_nothing_is_new_and_it_is_said(again):
    assert "no option is another" in resumed(again, "resume=auto", "resume_optimizer=new")
    (state,) = read_checkpoint(again / "checkpoints/last.ckpt")["optimizer_states"]
    assert {float(s["step"]) for s in state["state"].values()} == {2.0}


def test_nothing_is_said_of_moments_where_a_run_begins(tmp_path):
    words = (f"paths.runs={tmp_path}", "run_id=a", "resume=auto", "resume_optimizer=new")
    assert "moments" not in run("train", *FAST, *words)


@pytest.mark.parametrize(
    "word", ["callbacks.last.every_n_epochs=10", "callbacks.last.every_n_train_steps=100"]
)
def test_the_end_of_a_run_is_kept_however_rarely_it_saves(tmp_path, word):
    rarely = (word, "trainer.check_val_every_n_epoch=10", "trainer.max_epochs=3")
    base = (*FAST, *rarely, f"paths.runs={tmp_path}", "run_id=a", "resume=auto")
    run("train", *base)
    assert read_checkpoint(tmp_path / "a/checkpoints/last.ckpt")["global_step"] == 3
    assert "finished" in run("train", *base)
    run("train", *base, "trainer.max_epochs=-1", "trainer.max_steps=5")
    assert read_checkpoint(tmp_path / "a/checkpoints/last.ckpt")["global_step"] == 5


def test_a_run_that_keeps_no_checkpoint_ends_as_others_do(tmp_path):
    words = ("~callbacks.best", "~callbacks.last", f"paths.runs={tmp_path}", "run_id=a")
    run("train", *FAST, *words)
    assert not list((tmp_path / "a/checkpoints").iterdir())


def test_a_run_of_averages_does_not_go_on_from_them_unawares(tmp_path):
    """As weights they do not belong to the moments, and the weights would be lost."""
    base = (*FAST, f"paths.runs={tmp_path}", "run_id=a", "resume=auto")
    run("train", *base, "callbacks=ema")
    before = (tmp_path / "a/checkpoints/last.ckpt").read_bytes()
    message = complaint("train", *base, "trainer.max_epochs=2")
    assert "was made with callbacks=ema" in message
    assert "init_from" in message
    assert (tmp_path / "a/checkpoints/last.ckpt").read_bytes() == before
    run("train", *base, "trainer.max_epochs=2", "callbacks=ema")
    run("train", *FAST, f"paths.runs={tmp_path}", "train=false", "test=true", "resume=a")


def test_a_run_of_the_same_name_elsewhere_has_a_best_of_its_own(again, tmp_path):
    last = shutil.copy(again / "checkpoints/last.ckpt", tmp_path / "last.ckpt")
    there = tmp_path / "there"
    words = (f"resume={last}", f"paths.runs={there}", "run_id=a", "trainer.max_epochs=2")
    run("train", *FAST, *words)
    assert (there / "a/checkpoints/best.ckpt").is_file()


@pytest.mark.parametrize("callbacks", ["default", "early_stopping"])
def test_a_run_that_ends_by_the_clock_is_finished(tmp_path, callbacks):
    base = (
        *FAST, "trainer.max_epochs=-1", "+trainer.max_time=00:00:00:01", "scheduler=constant",
        f"callbacks={callbacks}", f"paths.runs={tmp_path}", "run_id=a", "resume=auto",
    )  # fmt: skip
    run("train", *base)
    assert "finished" in run("train", *base)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("callbacks.best.monitor=val/bits",), "Did you mean val/bits_per_dim?"),
        (("callbacks.best.monitor=",), "There are: val/"),
        (EXPONENTIAL, "training/schedules.py"),
        (("logger=mlflow", "logger.mlflow.uri=foo://bar"), "logger.mlflow: "),
        (("logger=mlflow", "logger.mlflow.uri=http://127.0.0.1:9"), "logger.mlflow: "),
        (("logger=wandb", f"tags=[{'x' * 65}]"), "1 to 64 characters"),
    ],
)
def test_what_cannot_be_watched_or_scheduled_is_refused_before_training(tmp_path, words, said):
    """The first validation is the sanity check."""
    sane = ("++trainer.num_sanity_val_steps=1", f"paths.runs={tmp_path}", "run_id=a")
    assert said in complaint("train", *FAST, *sane, *words)
    assert not list(tmp_path.glob("a/checkpoints/*"))


def test_a_schedule_goes_on_from_the_runs_step(again):
    run(
        "train", *FAST, f"paths.runs={again.parent}", "run_id=a", "resume=auto",
        "trainer.max_epochs=4", "resume_optimizer=keep", "scheduler=step_down", "scheduler.at=3",
        "optimizer.lr=1e-2",
    )  # fmt: skip
    assert figures(again, "lr-RAdam")[1:] == pytest.approx([1e-2, 1e-2, 1e-3])


def test_weights_are_taken_where_they_fit(made, tmp_path):
    words = (*FAST, f"paths.runs={tmp_path}", f"init_from={made}", "optimizer.lr=1e-12")
    printed = run("train", *words, "run_id=same")
    assert "weights" in printed
    ours = read_checkpoint(tmp_path / "same/checkpoints/last.ckpt")["state_dict"]
    theirs = read_checkpoint(made / "checkpoints/best.ckpt")["state_dict"]
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in theirs)
    printed = run("train", *words, "run_id=head", "task/distribution=categorical")
    assert "new: head.weight, head.bias" in printed
    other = ("model.model_dim=32", "task/distribution=categorical")
    message = complaint("train", *words, "run_id=none", *other)
    assert "none of its weights fit" in message


def test_a_run_that_tunes_another_has_its_model(again, tmp_path):
    """Unless the command line says otherwise; and where the other is gone, its own."""
    theirs = read_checkpoint(again / "checkpoints/best.ckpt")["config"]["model"]
    assert (theirs["num_layers"], theirs["norm"]) == (2, "pre")
    images = np.random.default_rng(0).integers(0, 17, (60, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=images, x_test=images[:20])
    words = (
        "logger=none", "trainer=cpu", "debug=step", "test=false", f"paths.runs={tmp_path}",
        "data=arrays", f"data.path={tmp_path}/own.npz", "data.num_levels=17", "init_from=a",
    )  # fmt: skip
    printed = run("train", *words, "run_id=b", "model.dropout=0.4", "resume=auto")
    taken, of = re.search(r"weights  (\d+) of (\d+) tensors", printed).groups()
    assert taken == of
    ours = read_checkpoint(tmp_path / "b/checkpoints/last.ckpt")["config"]["model"]
    assert ours == {**theirs, "dropout": 0.4}
    assert "1 layer of LSTM" in run("train", *words, "run_id=c", "model=lstm", "model.num_layers=1")
    mine = tmp_path / "conf/experiment"
    mine.mkdir(parents=True)
    for name, models in (("short", ""), ("lstm", "defaults: [override /model: lstm]\n")):
        text = f"# @package _global_\n{models}trainer: {{max_epochs: 1}}\n"
        (mine / f"{name}.yaml").write_text(text)
        printed = run(
            "train", *words[:-1], "++init_from=a", "--config-dir", str(mine.parent),
            f"experiment={name}", f"run_id={name}", "model.num_layers=2", "model.model_dim=16",
        )  # fmt: skip
        assert ("LSTM" in printed) == (name == "lstm")
    several = complaint("train", "-m", *words[:-1], "init_from=a,b")
    assert "init_from=a,b: their models may differ. Add model=." in several
    shutil.rmtree(again)
    halve(tmp_path / "b/checkpoints/best.ckpt")
    longer = ("model.dropout=0.4", "resume=auto", "trainer.max_epochs=2")
    assert "resume" in run("train", *words, "run_id=b", *longer)


def test_a_job_of_slurm_that_reads_a_checkpoint_first_has_threads_as_others(again, monkeypatch):
    """Of a checkpoint its model is taken, for which torch is imported."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_ON_NODE"):
        monkeypatch.setenv(name, "1")
    words = (*FAST, f"paths.runs={again.parent}", "run_id=b", "init_from=a")
    said = run_apart("train", *words)
    assert "weights  " in said
    assert re.search(r"\b1 threads", said)


def test_whoever_tunes_a_model_of_foreign_classes_has_to_trust_them(again):
    path = again / "checkpoints/best.ckpt"
    checkpoint = read_checkpoint(path)
    checkpoint["config"]["model"]["mixer"] = {"_target_": "tests.faults.places.FailAt"}
    forge(checkpoint, path)
    message = complaint("train", *QUICK[-2:], f"paths.runs={again.parent}", "init_from=a")
    assert "add allow=[tests]" in message


def test_a_checkpoint_knows_what_it_is_tested_on(tmp_path):
    images = np.random.default_rng(0).integers(0, 9, (60, 6, 6), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=images, x_test=images[:20])
    data = ("data=arrays", f"data.path={tmp_path}/a.npz", "data.val_size=5", "data.num_levels=9")
    base = (f"paths.runs={tmp_path}", "logger=none", "trainer=cpu", "debug=step")
    run("train", *QUICK, *data, f"paths.runs={tmp_path}", "run_id=a")
    run("train", *base, "train=false", "resume=a", "run_id=b")
    (one,), (two,) = (figures(tmp_path / name, "test/bits_per_dim") for name in "ab")
    assert one == two
    gone = ("train=false", "resume=a", "data.path=gone.npz")
    assert "data.path=gone.npz" in complaint("train", *base, *gone)


def test_a_changed_configuration_is_not_another_model(made, tmp_path):
    """The same weights fit a model of another norm, whose figures would be worse without a word."""
    checkpoint = torch.load(made / "checkpoints/best.ckpt", weights_only=True)
    del checkpoint["config"]["model"]["norm"]
    torch.save(checkpoint, tmp_path / "changed.ckpt")
    message = complaint("sample", f"ckpt={tmp_path}/changed.ckpt", f"out={tmp_path}/out")
    assert "was changed after it was saved" in message
