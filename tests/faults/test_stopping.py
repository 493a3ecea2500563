"""A signal at any place: the run saves, says how it goes on, and goes on to the same bits."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.stopping import Stopped, catching, pass_on
from tests.conftest import PROJECT
from tests.programs import QUICK, check_same_bits, figures, metrics, run, start

EPOCHS = (
    *QUICK, "trainer.limit_train_batches=4", "trainer.limit_val_batches=3", "data.batch_size=8",
    "trainer.max_epochs=3", "model.dropout=0.2", "test=false", "~callbacks.performance",
)  # fmt: skip
AVERAGED = ("callbacks=ema", "callbacks.ema.decay=0.5")
ACCUMULATED = ("trainer.accumulate_grad_batches=2",)
HALFWAY = ("trainer.val_check_interval=2",)
RARELY = ("trainer.check_val_every_n_epoch=2",)
# Too high a rate, so that validations get worse and it is lowered.
PLATEAU = (
    "scheduler=on_plateau", "scheduler.patience=0", "scheduler.factor=0.3", "optimizer=adam",
    "optimizer.lr=0.3",
)  # fmt: skip
# What is judged at validations is of the training before.
WATCHING = (
    "callbacks.best.monitor=train/bits_per_dim", "scheduler.monitor=train/bits_per_dim", *PLATEAU,
)  # fmt: skip
BOUNDED = ("trainer.max_steps=11",)
# It ends after the first epoch that is worse than the one before.
PATIENT = ("callbacks=early_stopping", "callbacks.stop_early.patience=1", *PLATEAU[3:])


def signal_at(hook: str, n: int, name: str = "SIGTERM") -> tuple[str, ...]:
    options = {"_target_": "tests.faults.places.SignalAt", "hook": hook, "n": n, "name": name}
    return ("allow=[tests]", *(f"+callbacks.at.{key}={value}" for key, value in options.items()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The runs that nothing stopped, by their options."""
    runs, made = tmp_path_factory.mktemp("whole"), {}

    def of(*options: str):
        if options not in made:
            made[options] = runs / f"run-{len(made)}"
            run("train", *EPOCHS, *options, f"paths.runs={runs}", f"run_id={made[options].name}")
        return made[options]

    return of


# Whose exit is another Ctrl-C.
IMPATIENT = """
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGINT)
from train import main
main()
"""


def test_a_key_pressed_while_a_stopped_run_ends_is_no_traceback(tmp_path):
    words = (*EPOCHS, f"paths.runs={tmp_path}", *signal_at("train_batch_end", 2, "SIGINT"))
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, *words], cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGINT
    assert "stopped  by Ctrl-C" in done.stderr
    assert "Traceback" not in done.stderr


def stopped(tmp_path, capsys, *words: str) -> tuple[int, str]:
    """Train until the signal; the exit code, and what was said."""
    with pytest.raises(SystemExit) as end:
        run("train", *EPOCHS, f"paths.runs={tmp_path}", *words)
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("hook", "n", "options"),
    [
        ("train_batch_end", 2, ()),
        ("train_batch_end", 3, ()),  # before the last of an epoch
        ("train_batch_end", 5, AVERAGED),
        ("train_batch_end", 4, ()),  # the last before a validation
        ("train_batch_end", 5, ACCUMULATED),
        ("train_batch_end", 4, RARELY),  # the last of an epoch without one
        ("train_batch_end", 6, HALFWAY),
        ("validation_start", 1, ()),
        ("validation_batch_start", 2, ()),
        ("validation_batch_start", 5, AVERAGED),
        ("validation_batch_start", 8, HALFWAY),
        ("validation_epoch_end", 1, ()),
        ("validation_epoch_end", 1, HALFWAY),
        ("validation_epoch_end", 2, PLATEAU),
        ("train_epoch_end", 1, ()),
        ("train_epoch_end", 2, PLATEAU),
        ("validation_batch_start", 5, WATCHING),
        ("train_batch_end", 4, BOUNDED),
        ("train_epoch_end", 1, BOUNDED),
        ("validation_epoch_end", 1, PATIENT),
        ("train_epoch_end", 2, PATIENT),
        ("train_batch_end", 12, ()),  # the last of the run
    ],
)
def test_a_run_goes_on_to_the_same_bits(tmp_path, capsys, whole, hook, n, options):
    code, said = stopped(tmp_path, capsys, "run_id=a", *options, *signal_at(hook, n))
    assert code == 143
    assert "stopped  by SIGTERM" in said
    assert "run_id=a resume=auto" in said
    path, expected = tmp_path / "a/checkpoints/last.ckpt", whole(*options)
    runs = tmp_path / "a", expected
    read_checkpoint(path)
    assert not list(tmp_path.rglob("*.part"))
    run("train", *EPOCHS, *options, f"paths.runs={tmp_path}", "run_id=a", "resume=auto")
    last = check_same_bits(*runs), read_checkpoint(expected / "checkpoints/last.ckpt")
    rates = [c["optimizer_states"][0]["param_groups"][0]["lr"] for c in last]
    assert rates[0] == rates[1]
    for name in ("train/bits_per_dim", "val/bits_per_dim"):
        rows = [[(row["step"], row[name]) for row in metrics(r) if name in row] for r in runs]
        assert rows[0] == rows[1]
    best = [read_checkpoint(r / "checkpoints/best.ckpt") for r in runs]
    assert best[0]["global_step"] == best[1]["global_step"]


@pytest.mark.parametrize(
    ("name", "code"), [("SIGINT", 130), ("SIGUSR1", 138), ("SIGUSR2", 140), ("SIGTERM", 143)]
)
def test_every_signal_has_its_exit_code(tmp_path, capsys, name, code):
    found, said = stopped(tmp_path, capsys, "run_id=a", *signal_at("train_batch_end", 2, name))
    assert found == code
    assert ("Ctrl-C" if name == "SIGINT" else name) in said
    assert read_checkpoint(tmp_path / "a/checkpoints/last.ckpt")["global_step"] == 2


def test_a_run_whose_log_is_stopped_with_it_is_saved(tmp_path):
    """As by Ctrl-C of `train.py 2>&1 | tee log`."""
    endless = ("trainer.max_epochs=-1", "scheduler=constant")
    words = (*EPOCHS, *endless, f"paths.runs={tmp_path}", "run_id=a")
    process = start("train", *words, stderr=subprocess.STDOUT)
    next(line for line in process.stdout if line.startswith("epoch"))
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    read_checkpoint(tmp_path / "a/checkpoints/last.ckpt")


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts(tmp_path, capsys):
    options = ("trainer.num_sanity_val_steps=1", *signal_at("sanity_check_start", 1))
    code, said = stopped(tmp_path, capsys, "run_id=a", *options)
    assert (code, "kept     nothing yet" in said) == (143, True)
    command = next(line for line in said.splitlines() if line.startswith("next"))
    program, *words = shlex.split(command)[3:]
    assert program.endswith("train.py")
    kept = (tmp_path / "a/config.yaml").read_text()
    run("train", *[word for word in words if "callbacks.at" not in word])
    assert read_checkpoint(tmp_path / "a/checkpoints/last.ckpt")["global_step"] == 12
    assert (tmp_path / "a/config.yaml").read_text() == kept


def test_a_signal_in_the_test_keeps_the_training(tmp_path, capsys):
    options = ("test=true", *signal_at("test_batch_start", 1, "SIGUSR1"))
    code, said = stopped(tmp_path, capsys, "run_id=a", *options)
    assert (code, "resume=auto" in said) == (138, True)
    before = (tmp_path / "a/checkpoints/last.ckpt").read_bytes()
    words = (*EPOCHS, "test=true", f"paths.runs={tmp_path}", "run_id=a", "resume=auto")
    run("train", *words)
    assert (tmp_path / "a/checkpoints/last.ckpt").read_bytes() == before
    (figure,) = figures(tmp_path / "a", "test/bits_per_dim")
    count = len(list((tmp_path / "a").glob("config*.yaml")))
    printed = run("train", *words)
    assert "finished" in printed
    assert f"test {figure:.4f}"[:9] in printed
    assert "sample.py ckpt=" in printed
    assert len(list((tmp_path / "a").glob("config*.yaml"))) == count


def test_whoever_heard_a_signal_before_is_given_it_once_the_job_is_saved():
    told = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: told.append(number))
    try:
        with pytest.raises(Stopped) as stopped, catching():
            os.kill(os.getpid(), signal.SIGUSR2)
        assert not told
        pass_on(stopped.value)
        assert told == [signal.SIGUSR2]
        with catching():
            pass_on(Stopped(signal.SIGUSR2))  # of a job beside others in one process
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        pass_on(Stopped(signal.SIGUSR2))
        pass_on(Stopped(signal.SIGINT))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert told == [signal.SIGUSR2]


def test_what_a_launcher_starts_to_requeue_a_job_outlives_the_end_of_the_job():
    """Slurm sends SIGTERM to all of it as soon as it is asked, before it says that it was."""
    asked = []

    def requeue(number: int, frame: object) -> None:
        asked.append(subprocess.run(["sh", "-c", "kill -TERM $$; echo asked"], check=True))

    before = signal.signal(signal.SIGUSR2, requeue)
    ending = signal.getsignal(signal.SIGTERM)
    try:
        pass_on(Stopped(signal.SIGUSR2))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert len(asked) == 1
    assert signal.getsignal(signal.SIGTERM) == ending


def test_a_signal_that_comes_in_a_finalizer_is_not_lost():
    """Python prints what is raised in `__del__`, and goes on."""

    class Closes:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def work():
        Closes()
        time.sleep(10)

    with pytest.raises(Stopped, match="SIGTERM"), catching():
        work()
