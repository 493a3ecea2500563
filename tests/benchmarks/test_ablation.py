"""The program that compares variants in pairs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean, stdev
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import ablation, gallery, record
from linear_transformers.provenance import ABSOLUTE
from linear_transformers.runs.checkpoint import read_checkpoint
from linear_transformers.runs.folder import locked
from linear_transformers.stopping import Stopped
from linear_transformers.tasks.loading import load
from tests.conftest import PROJECT, composed

SMALL = [
    "trainer.max_epochs=1",
    "trainer.check_val_every_n_epoch=1",
    "model.num_layers=1",
    "model.model_dim=16",
    "+trainer.limit_train_batches=3",
]
TRAINED = ("model", "optimizer", "task", "trainer")
ARGUMENTS = ["digits", "--seeds", "0", "1", "--variants", "linear", "softmax", "--overrides"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run an ablation in the test's folder."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")

    def run(*words: str):
        arguments = [*ARGUMENTS, *SMALL, *words, "--runs", str(tmp_path / "runs")]
        monkeypatch.setattr(sys, "argv", ["ablation", *arguments])
        ablation.main()
        return json.loads((tmp_path / "results" / "ablation-digits.json").read_text())

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Run the ablation once, for all tests that begin with a finished one."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "RESULTS", folder / "results")
        patch.setattr(sys, "argv", ["ablation", *ARGUMENTS, *SMALL, "--runs", f"{folder}/runs"])
        ablation.main()
    return folder


@pytest.fixture
def first(made, tmp_path):
    """Return a finished ablation's file; its copy is in the test's folder, without its runs."""
    shutil.copytree(made / "results", tmp_path / "results")
    return json.loads((made / "results/ablation-digits.json").read_text())


def figures_of(found, variant, seed):
    """Return the figure of each run of a variant and seed that a file has, of any arguments."""
    runs = found["sources"]
    return [run["test"] for run in runs if (run["variant"], run["seed"]) == (variant, seed)]


def test_differences_are_those_of_the_runs_images(made):
    """Against each image's bits/dim, computed image by image."""
    found = json.loads((made / "results/ablation-digits.json").read_text())
    assert [row["variant"] for row in found["rows"]] == ["linear", "softmax"]
    assert sorted(source["seed"] for source in found["sources"]) == [0, 0, 1, 1]
    bits = {}
    for variant in ("linear", "softmax"):
        for seed in (0, 1):
            (folder,) = (made / "runs").glob(f"ablation-digits-{variant}-{seed}-*")
            model = load(folder / "checkpoints/best.ckpt")
            likelihoods = model.log_likelihood(model.images("test"))
            bits[variant, seed] = -likelihoods / 64 / torch.log(torch.tensor(2.0))
    tests = [bits["linear", seed].mean().item() for seed in (0, 1)]
    row = found["rows"][0]
    assert row["test_bits_per_dim"] == pytest.approx(fmean(tests), abs=2e-4)
    assert row["deviation"] == pytest.approx(stdev(tests), abs=2e-4)
    pairs = [bits["linear", seed] - bits["softmax", seed] for seed in (0, 1)]
    means = [pair.mean().item() for pair in pairs]
    of_batches = torch.stack(pairs).mean(0).view(-1, 4).mean(1)  # 180 images, four a batch
    difference, seeds, test_set = row["against softmax"].replace("±", "").split(" " * 2)
    assert float(difference) == pytest.approx(fmean(means), abs=6e-4)
    assert float(seeds.split()[0]) == pytest.approx(stdev(means) / 2**0.5, abs=6e-4)
    expected = (of_batches.std() / len(of_batches) ** 0.5).item()
    assert float(test_set.split()[0]) == pytest.approx(expected, abs=6e-4)
    bound = 2 * (stdev(means) ** 2 / 2 + expected**2) ** 0.5
    verdict = "level" if abs(fmean(means)) <= bound else "behind" if fmean(means) > 0 else "ahead"
    assert row["against softmax"].endswith(f": {verdict}")


@pytest.mark.parametrize("place", ["/mnt/b/speech", "/home/b/data/speech", f"{PROJECT}/speech"])
def test_a_run_is_the_same_wherever_its_data_are(place, tmp_path, monkeypatch):
    """And no file tells where that was."""
    monkeypatch.setenv("HOME", "/home/b")
    monkeypatch.chdir(PROJECT)
    job, other = (
        ablation.Job("speechocean", "linear", 0, tmp_path, ("paths.data=x", f"data.path={path}"))
        for path in ("/mnt/a/speech", place)
    )
    assert job.arguments == other.arguments
    assert job.arguments.endswith("data.path=.../speech")
    assert job.folder == other.folder
    assert "data.path=/mnt/a/speech" in job.command


def test_no_result_names_a_place():
    for path in (PROJECT / "results").glob("*.json*"):
        assert not ABSOLUTE.findall(path.read_text()), path


def test_what_is_recorded_is_not_run_again(run, first, tmp_path, monkeypatch):
    """Not even on a machine that does not have the runs; unless the arguments have changed."""
    assert run("paths.data=elsewhere")["rows"] == first["rows"]
    assert not (tmp_path / "runs").exists()
    plan = ablation.PLANS["digits"]
    changed = {**plan.variants, "linear": (*plan.variants["linear"], "model.dropout=0.3")}
    monkeypatch.setitem(ablation.PLANS, "digits", plan._replace(variants=changed))
    second = run("--seeds", "0")
    assert second["rows"][1]["test_bits_per_dim"] == first["rows"][1]["test_bits_per_dim"]
    assert len({*figures_of(second, "linear", 0)}) == 2
    (again,) = (tmp_path / "runs").glob("ablation-*")
    assert again.name.startswith("ablation-digits-linear-0-")


def test_runs_with_other_overrides_are_others(run, first, tmp_path):
    """What was tried in small must not stand in for what was asked for, nor be lost. The line
    names what the table's runs were given, not a stray one."""
    usual, stray = first["sources"][0], {**first["sources"][0], "seed": 9, "arguments": "stray"}
    first["sources"] = [stray, *first["sources"], stray | {"seed": 10, "arguments": "another"}]
    (tmp_path / "results/ablation-digits.json").write_text(json.dumps(first))
    before = (tmp_path / "results/ablation-digits.json").read_bytes()
    with pytest.raises(SystemExit, match=r"has 6 runs, all with other arguments") as told:
        run("model.num_layers=2", "--seeds", "0", "--variants", "linear")
    assert f"such as {usual['arguments']!r}" in str(told.value)
    assert "RESULTS=FOLDER" in str(told.value)
    assert (tmp_path / "results/ablation-digits.json").read_bytes() == before
    assert not (tmp_path / "runs").exists()


def failed(communicate=lambda: ("", "error: no memory")) -> SimpleNamespace:
    """Return a program that fails."""
    return SimpleNamespace(communicate=communicate, returncode=1, terminate=lambda: None)


def test_what_runs_beside_a_failed_run_is_stopped(monkeypatch):
    """It goes on by the same command; the failure would be said only hours later."""
    begun, stopped = threading.Event(), threading.Event()

    def failing():
        assert begun.wait(20)
        return "", "error: no memory"

    def waiting():
        begun.set()
        assert stopped.wait(20)
        return "", ""

    other = SimpleNamespace(communicate=waiting, returncode=143, terminate=stopped.set)
    monkeypatch.setattr(
        ablation.subprocess, "Popen", lambda x, **_: failed(failing) if "seed=0" in x else other
    )
    overrides = ("data.path=${paths.data}/x",)
    jobs = [ablation.Job("digits", "linear", seed, Path(), overrides) for seed in (0, 1)]
    with pytest.raises(SystemExit, match=r"'data.path=\$\{paths.data\}/x'\nerror: no memory"):
        next(ablation.run(jobs, [0, 1]))
    assert stopped.is_set()


def test_what_follows_a_failed_run_is_not_begun(run, monkeypatch):
    """But for one that may have begun before the failure was seen."""
    begun, stopped = [], threading.Event()
    given = subprocess.Popen

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            stopped.set()
            super().shutdown(wait=wait)

    def failing(command, **options):
        if "train.py" not in command:
            return given(command, **options)
        begun.append(command)
        assert len(begun) == 1 or stopped.wait(60)
        return failed()

    monkeypatch.setattr(ablation.subprocess, "Popen", failing)
    monkeypatch.setattr(ablation, "ThreadPoolExecutor", Pool)
    with pytest.raises(SystemExit, match="error: no memory"):
        run("--cores", "0")
    assert len(begun) <= 2  # of four


def test_a_core_whose_program_could_not_begin_is_free_again(monkeypatch):
    """Else the next job, which may have begun before that was seen, waits for it for ever."""
    cores = SimpleQueue()

    def failing(command, **options):
        raise OSError("no memory")

    monkeypatch.setattr(ablation, "SimpleQueue", lambda: cores)
    monkeypatch.setattr(ablation.subprocess, "Popen", failing)
    job = ablation.Job("digits", "linear", 0, Path(), ())
    with pytest.raises(OSError, match="no memory"):
        next(ablation.run([job], [0]))
    assert cores.qsize() == 1


def test_what_two_calls_at_once_have_run_is_all_in_the_file(run, tmp_path, monkeypatch):
    """And it names no seed that nobody has run yet."""
    path = tmp_path / "results/ablation-digits.json"
    path.parent.mkdir()

    def found(job, plan=None):
        about = {"variant": job.variant, "seed": job.seed, "arguments": job.arguments}
        figures = {"test_bits_per_dim": 2.0}
        return about | {"figures": figures, "test": 2.0, "test_without": [2.0], "seconds": 1.0}

    def training(jobs, cores):
        others = [job for job in jobs if job.seed == 0]
        path.write_text(json.dumps({"sources": [found(job) for job in others]}))
        yield next(job for job in jobs if job.seed == 1)

    monkeypatch.setattr(ablation, "run", training)
    monkeypatch.setattr(ablation, "record_of", found)
    measurement = run("--seeds", "0", "1", "2")
    runs = {(source["variant"], source["seed"]) for source in measurement["sources"]}
    assert runs == {("linear", 0), ("softmax", 0), ("linear", 1)}
    assert [row["runs"] for row in measurement["rows"]] == [2, 1]
    assert measurement["seeds"] == [0, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ablation_that_is_stopped_ends_its_runs_and_goes_on_with_them(tmp_path, number):
    words = [*SMALL[1:], "trainer.max_epochs=2000", "--runs", str(tmp_path / "runs")]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ablation", *ARGUMENTS, *words, "--cores", "0"],
        cwd=PROJECT, env={**os.environ, "RESULTS": str(tmp_path)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    while not list(tmp_path.glob("runs/*/checkpoints/*.ckpt")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.2)
    process.send_signal(number)  # to it alone, as a scheduler does
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said.splitlines()[-1].startswith("stopped by ")
    (folder,) = (tmp_path / "runs").iterdir()  # of four runs
    lock = locked(folder, folder.name)  # its program has ended
    assert lock is not None
    lock.release()
    assert read_checkpoint(folder / "checkpoints/last.ckpt")["global_step"] > 0


def test_a_run_that_was_never_validated_is_told(run):
    with pytest.raises(SystemExit, match=r"ablation-digits-linear-0-\w+ was never validated"):
        run("trainer.check_val_every_n_epoch=9", "--seeds", "0", "--variants", "linear")


def test_a_file_that_cannot_be_continued_is_not_overwritten(run, tmp_path):
    path = tmp_path / "results" / "ablation-digits.json"
    path.parent.mkdir()
    path.write_text('{"rows": [], "sources": [{"seed": 0}]}')
    with pytest.raises(SystemExit, match="is of a form before this one"):
        run()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ablation.PLANS)
def test_variants_are_what_the_command_line_knows(name, tmp_path):
    """And differ in what is trained."""
    plan = ablation.PLANS[name]
    assert {*plan.references} <= {*plan.variants}
    configs = [
        composed(*plan.arguments, *words, f"paths.data={tmp_path}")
        for words in plan.variants.values()
    ]
    parts = [json.dumps([config[x] for x in TRAINED], sort_keys=True) for config in configs]
    assert len({*parts}) == len(parts)
    data = configs[0]["data"]
    assert {*plan.batch} <= {*data}


def test_what_is_to_come_is_told(first):
    records = {(run["variant"], run["seed"]): {**run, "seconds": 60.0 * (1 + run["seed"])}
               for run in first["sources"]}  # fmt: skip
    waiting = [ablation.Job("digits", variant, 2, Path(), ()) for variant in ("linear", "sparse")]
    assert ablation.remaining(waiting, {}, 2) == "2 of 2 runs to come"
    told = ablation.remaining(waiting, records, 2)
    assert told == "2 of 6 runs to come, some 0:01:15 on as many cores as now"
    records["linear", 1]["seconds"] = 1e6  # interrupted, and continued days later
    assert ablation.remaining(waiting[:1], records, 1).endswith(" 0:01:00 on as many cores as now")
    assert ablation.remaining([], records, 2) == "0 of 4 runs to come"


def test_what_a_table_anew_takes_is_told_by_the_projects_own(run, monkeypatch, capsys):
    own = json.loads((PROJECT / "results/ablation-digits.json").read_text())["sources"]
    seconds = [x["seconds"] for x in own if x["variant"] in ("linear", "softmax")]

    def stopped(jobs, cores):
        raise Stopped(signal.SIGINT)
        yield

    monkeypatch.setattr(ablation, "run", stopped)
    with pytest.raises(SystemExit):
        run("--cores", "0", "1")
    told = re.match(r"4 of 4 runs to come, some 0:(\d\d):(\d\d) on", capsys.readouterr().out)
    assert told is not None
    assert 2 * min(seconds) <= 60 * int(told[1]) + int(told[2]) <= 2 * max(seconds)


def test_runs_keep_their_learning_curves(first):
    for run in first["sources"]:
        (curve,) = run["curves"].values()
        assert curve["value"][-1] == pytest.approx(run["figures"]["val_bits_per_dim"], abs=1e-4)


def test_what_models_draw_is_one_picture(made, first, tmp_path, monkeypatch, capsys):
    """Of runs of the table: another may be half done."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    first["sources"] = [x for x in first["sources"] if (x["variant"], x["seed"]) != ("softmax", 0)]
    (tmp_path / "results/ablation-digits.json").write_text(json.dumps(first))
    words = ["digits", "--variants", "linear", "softmax", "--overrides", *SMALL]
    monkeypatch.setattr(sys, "argv", ["gallery", *words, "--runs", f"{made}/runs"])
    gallery.main()
    with Image.open(tmp_path / "results/ablation-digits-images.png") as picture:
        columns, rows = 2 * gallery.COLUMNS, 4  # given, original, and a row a variant
        tile = 80 + 6  # 8 pixels enlarged, and a gap
        assert picture.size[0] >= columns * tile
        assert picture.size[1] == rows * tile + 6
    told = capsys.readouterr().out
    assert re.search(r"linear: ablation-digits-linear-0-\w+, \d\.\d+ bits/dim", told)
    assert re.search(r"softmax: ablation-digits-softmax-1-\w+, \d\.\d+ bits/dim", told)
    drawn = (tmp_path / "results/ablation-digits-images.png").read_bytes()
    monkeypatch.setattr(sys, "argv", ["gallery", *words, "--runs", f"{tmp_path}/none"])
    gallery.main()  # with the runs gone, from what was drawn
    assert (tmp_path / "results/ablation-digits-images.png").read_bytes() == drawn
    archive = tmp_path / "results/ablation-digits-images.npz"
    rows = dict(np.load(archive))
    np.savez(archive, **rows | {"original": rows["original"][::-1]})
    monkeypatch.setattr(sys, "argv", ["gallery", *words, "--runs", f"{made}/runs"])
    with pytest.raises(SystemExit, match="has other images than"):
        gallery.main()
    archive.unlink()
    monkeypatch.setattr(sys, "argv", ["gallery", *words, "--runs", f"{tmp_path}/none"])
    with pytest.raises(SystemExit, match=r"benchmarks\.ablation digits"):
        gallery.main()


def test_a_variant_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ablation", "digits", "--variants", "linnear"])
    with pytest.raises(SystemExit, match=r"error: linnear is no variant. Choose of \['linear'"):
        ablation.main()
