"""A package of a user's own, outside of `src/`, goes through every job."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from linear_transformers.config import choices
from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.tasks.loading import load
from linear_transformers.testing import check_attention, check_mixer, name_of, promises_of
from tests.conftest import PROJECT
from tests.programs import QUICK, check_same_bits, complaint, figures, metrics, run

OUTSIDE = Path(__file__).parent / "outside"
CONF = ("--config-dir", str(OUTSIDE / "conf"))
QUIET = ("trainer=cpu", "logger=none")

sys.path.append(str(OUTSIDE))  # as PYTHONPATH does; here, since promises are collected
from mine.mechanisms import AftSimple, Fading, Softplus  # noqa: E402


def forget() -> None:
    """Allow nothing, as in a process of its own."""
    choices._allowed.clear()


def train(runs, *arguments: str) -> str:
    forget()
    return run("train", *CONF, *QUIET, f"paths.runs={runs}", *arguments)


def sample(runs, *arguments: str) -> str:
    forget()
    return run("sample", *CONF, f"paths.runs={runs}", *arguments)


@pytest.mark.parametrize("promise", promises_of(AftSimple), ids=name_of)
def test_an_attention_can_be_held_to_the_promises(promise):
    promise(AftSimple)


PARTS = {"short_convolution": 3, "rotary": True, "output_norm": True, "output_gate": "silu"}


@pytest.mark.parametrize("parts", [{}, PARTS], ids=["bare", "parts"])
def test_a_layer_of_heads_keeps_the_promises_with_what_it_inherits(parts):
    check_mixer(partial(Fading, **parts))


def test_whoever_breaks_a_promise_is_found():
    class Forgetful(AftSimple):
        def select(self, state, rows):
            return super().select(state, rows.sort().values)

    with pytest.raises(AssertionError, match="does not hold: selected rows go on as they would"):
        check_attention(Forgetful)


def test_a_sum_in_half_precision_is_told_of_what_keeps_it():
    class Narrow(AftSimple):
        def prefill(self, q, k, v, state=None):
            output, state = super().prefill(q, k, v, state)
            return (output.double() * 1.1).to(v.dtype) if v.dtype.itemsize == 2 else output, state

    with pytest.raises(AssertionError, match=r"full length\. It is off by .* float32: .* widened"):
        check_attention(Narrow)


@pytest.mark.parametrize(
    "choice", [("model=aft",), ("model=linear", "model/feature_map=softplus")], ids=" ".join
)
def test_an_attention_and_a_feature_map_train_resume_and_sample(tmp_path, choice):
    given = (*choice, *QUICK, "trainer.limit_train_batches=2", "scheduler=constant")
    printed = train(tmp_path, *given, "run_id=whole", "trainer.max_epochs=2")
    assert f"ckpt={tmp_path}/whole 'allow=[mine]'" in printed
    train(tmp_path, *given, "run_id=half", "test=false")
    train(tmp_path, *given, "run_id=half", "resume=half", "trainer.max_epochs=2")
    check_same_bits(tmp_path / "half", tmp_path / "whole")
    job = ("ckpt=whole", "images=1", "gif=false", "check=true", f"out={tmp_path}/out")
    assert "largest difference" in sample(tmp_path, *job, "allow=[mine]")
    taken = tmp_path / "taken"
    printed = run("export", f"paths.runs={tmp_path}", "ckpt=whole", f"out={taken}", "allow=[mine]")
    assert printed.splitlines()[-1].endswith(f"ckpt={taken} 'allow=[mine]'")
    card = (taken / "README.md").read_text()
    assert 'lt.load("DIR", allow=["mine"])' in card
    assert "classes of the project and mine\nonly." in card


@pytest.mark.parametrize("last", [False, True])
def test_models_of_ones_own_are_compared_in_a_multirun(tmp_path, last):
    """Wherever the words that are no options stand."""
    forget()
    words = ("model=aft,linear", *QUIET, *QUICK, "test=false", f"paths.runs={tmp_path}")
    printed = run("train", *(("-m", *words, *CONF) if last else (*CONF, "-m", *words)))
    assert "model=aft" in printed
    (table,) = (tmp_path / "sweeps").glob("*/results.json")
    assert [job["status"] for job in json.loads(table.read_text())] == ["done", "done"]


def test_what_a_class_of_ones_own_complains_of_has_its_place(tmp_path):
    forget()
    words = ("data=sums", "data.count=1", *QUIET, f"paths.runs={tmp_path}")
    message = complaint("train", *CONF, *words)
    assert message == "error: 1 sums are too few. (addition.py, line 62)"


def test_a_checkpoint_of_a_class_from_outside_is_refused_and_nothing_is_imported(tmp_path):
    train(tmp_path, "model=aft", *QUICK, "run_id=a", "test=false")
    forget()
    message = complaint("sample", f"paths.runs={tmp_path}", "ckpt=a")
    assert "mine.mechanisms.AftSimple may not be named" in message
    assert "add allow=[mine]" in message
    checkpoint = tmp_path / "a/checkpoints/last.ckpt"
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from linear_transformers.tasks.loading import load\n"
        f"try: load(Path({str(checkpoint)!r}))\n"
        "except ValueError as error: print('allow=[mine]' in str(error))\n"
        "print('mine' in sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=os.environ | {"PYTHONPATH": str(OUTSIDE)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert outcome.stdout.split() == ["True", "False"]


def test_no_file_can_allow_anything(tmp_path):
    train(tmp_path, "model=aft", *QUICK, "run_id=a", "test=false")
    forget()
    (tmp_path / "conf/logger").mkdir(parents=True)
    (tmp_path / "conf/logger/evil.yaml").write_text("# @package _global_\nallow: [mine]\n")
    message = complaint(
        "sample", "--config-dir", f"{tmp_path}/conf", f"paths.runs={tmp_path}", "ckpt=a",
        "logger=evil",
    )  # fmt: skip
    assert message.startswith("error: ")
    assert not choices._allowed


def test_an_optimizer_a_schedule_and_a_callback_can_be_of_ones_own(tmp_path):
    mine = ("optimizer=sign", "scheduler=halving", "callbacks=say", "callbacks.say.word=finished")
    printed = train(tmp_path, *QUICK, *mine, "run_id=a", "scheduler.every=1")
    assert "finished: 1" in printed
    # What trained a model is not needed to use it.
    assert "grid" in sample(tmp_path, "ckpt=a", "images=1", "gif=false")


def test_a_class_can_be_named_on_the_command_line(tmp_path):
    phi = "model.mixer.attention.feature_map"
    chosen = ("model=linear", f"{phi}._target_=mine.mechanisms.Softplus", f"{phi}.beta=2")
    train(tmp_path, *QUICK, *chosen, "run_id=a", "test=false")
    choices.allow("mine")
    layer = load(tmp_path / "a/checkpoints/last.ckpt").task.model.stack.mixers[0].attention
    assert isinstance(layer.feature_map, Softplus)
    assert layer.feature_map.beta == 2


def test_a_task_from_outside_trains_resumes_reports_and_samples(tmp_path):
    printed = train(tmp_path, "data=sums", "run_id=whole")
    assert "sums of 3 numbers" in printed
    assert "a small adder" in printed
    assert "adding" in printed
    assert f"ckpt={tmp_path}/whole 'allow=[mine]'" in printed
    logged = {name for row in metrics(tmp_path / "whole") for name in row}
    assert {"val/right", "val/error", "test/error", "train/error", "samples/errors"} <= logged
    assert figures(tmp_path / "whole", "perf/tokens_per_second")

    train(tmp_path, "data=sums", "run_id=half", "trainer.max_epochs=1")
    train(tmp_path, "data=sums", "run_id=half", "resume=half")
    check_same_bits(tmp_path / "half", tmp_path / "whole")
    assert sample(tmp_path, "ckpt=whole", "n=3", "allow=[mine]").count("->") == 3


def test_the_next_command_of_a_package_of_ones_own_can_be_pasted(tmp_path):
    given = [sys.executable, "-m", "linear_transformers"]
    environment = os.environ | {"PYTHONPATH": str(OUTSIDE)}

    def said(*words: str) -> str:
        outcome = subprocess.run(
            [*given, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    printed = said("train", *CONF, *QUIET, "data=sums", "run_id=a")
    (line,) = (line for line in printed.splitlines() if line.startswith("next"))
    assert line.split()[1:] == [
        "linear-transformers", "sample", *CONF, "ckpt=runs/a", "'allow=[mine]'"
    ]  # fmt: skip
    assert "->" in said("sample", *CONF, "ckpt=runs/a", "allow=[mine]")


def test_its_options_are_checked_as_ours_are(tmp_path):
    with pytest.raises(SystemExit, match="Did you mean width"):
        train(tmp_path, "data=sums", "model.widht=3")
    with pytest.raises(SystemExit, match=r"task\.scale='big': it must be a valid number"):
        train(tmp_path, "data=sums", "task.scale=big")
    with pytest.raises(SystemExit, match="at least one number"):
        train(tmp_path, "data=sums", "data.terms=0")
    train(tmp_path, "data=sums", "run_id=a", "test=false", "trainer.max_epochs=1")
    with pytest.raises(SystemExit, match=r"task\.scale=1\.0, this run has task\.scale=2\.0"):
        train(tmp_path, "data=sums", "run_id=a", "resume=a", "task.scale=2")


def test_the_best_checkpoint_is_the_one_with_the_most_where_that_is_good(tmp_path):
    given = ("trainer.max_epochs=6", "test=false", "optimizer.lr=0.05")
    train(tmp_path, "data=sums", "run_id=a", *given)
    right = figures(tmp_path / "a", "val/right")
    best = read_checkpoint(tmp_path / "a/checkpoints/best.ckpt")["epoch"]
    assert right[best] == max(right) > min(right)
