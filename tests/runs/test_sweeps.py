"""A multirun: one run a job, and a table of what they came to."""

import json
import os
import subprocess
import sys

import pytest
from hydra.errors import MissingConfigException

from linear_transformers.config.folder import Configurations
from linear_transformers.jobs.composition import (
    about_composition,
    jobs_of,
    of_each_job,
)
from linear_transformers.pictures.tables import print_rows, print_table, rounded
from linear_transformers.runs.outcomes import CAUTION, Outcome, best_of
from linear_transformers.runs.sweeps import Sweep
from tests.conftest import CONF, PROJECT
from tests.faults.test_stopping import signal_at
from tests.programs import QUICK, complaint, figures, run, run_apart


def results(runs) -> tuple[list[dict], str]:
    (folder,) = (runs / "sweeps").iterdir()
    return json.loads((folder / "results.json").read_text()), (folder / "results.md").read_text()


def test_a_multirun_makes_one_run_a_job_and_a_table_of_them(tmp_path):
    printed = run(
        "train", *QUICK, "-m", "model=linear_conv", "model/feature_map=elu,relu", "seed=3",
        f"paths.runs={tmp_path}",
    )  # fmt: skip
    names = {path.parent.name for path in tmp_path.glob("*/config.yaml")}
    assert len(names) == 2
    assert all(name.startswith("digits-linear_conv-") for name in names)
    jobs, page = results(tmp_path)
    assert [job["status"] for job in jobs] == ["done", "done"]
    assert {job["figures"]["run"] for job in jobs} == names
    for job, feature_map in zip(jobs, ("elu", "relu"), strict=True):
        directory = tmp_path / job["figures"]["run"]
        assert f"model/feature_map={feature_map}" in job["overrides"]
        (bits,) = figures(directory, "test/bits_per_dim")
        assert job["figures"]["test_bits_per_dim"] == round(bits, 4)
        assert job["figures"]["tokens_per_second"] > 0
    header, _, first, second = page.splitlines()
    # What differs between the jobs is a column; the seed does not.
    assert header.startswith("| job | model/feature map | run | val bits per dim |")
    assert "seed" not in header
    assert "| elu |" in first
    assert "| relu |" in second
    assert "2 jobs" in printed
    assert "results.md" in printed
    for job in jobs:
        assert str(rounded(job["figures"]["test_bits_per_dim"])) in printed
    best = min(jobs, key=lambda job: job["figures"]["val_bits_per_dim"])
    (word,) = (word for word in best["overrides"] if "feature_map" in word)
    assert f"best     {word}: {rounded(best['figures']['val_bits_per_dim'])} in val" in printed


def test_the_best_is_that_of_the_mean_over_seeds():
    def job(width: int, seed: int, objective: float | None, name: str = "val_loss") -> dict:
        words = [f"width={width}", f"seed={seed}", "depth=2"]
        return {"overrides": words, "objective": objective, "figures": {name: objective}}

    jobs = [job(1, 0, 3.0), job(1, 1, 1.0), job(2, 0, 1.5), job(2, 1, 1.5), job(3, 0, None)]
    assert best_of(jobs) == "width=2: 1.5 in validation; width=1: 2.0"
    negated = [job(1, 0, -0.5), job(2, 0, -0.25)]  # an accuracy
    assert best_of(negated) == "width=1: 0.5 in validation; width=2: 0.25"
    assert best_of(jobs[:2]) is None  # nothing to choose from
    assert best_of(jobs[:3]) is None  # the one seed of the second may be an easy one
    assert best_of([job(1, 0, 1.0, "test_loss"), job(2, 0, 2.0, "test_loss")]) is None


@pytest.mark.parametrize(
    ("key", "names"),
    [
        *(
            (key, ("val_loss", "val_loss"))
            for key in ("data", "+data", "data.path", "data.function")
        ),
        ("experiment", ("val_loss", "val_loss")),
        ("task", ("val_loss", "val_error")),
    ],
)
def test_figures_of_other_kinds_have_no_best(key, names):
    jobs = [
        {"overrides": [f"{key}={i}"], "objective": i, "figures": {name: i}}
        for i, name in enumerate(names)
    ]
    assert best_of(jobs) is None


def test_a_model_whose_figures_are_no_likelihoods_is_not_the_best_of_a_sweep(tmp_path):
    """Reformer is not exactly causal: later values change what it predicts."""
    printed = run("train", *QUICK, "-m", "model=softmax,reformer1,linear", f"paths.runs={tmp_path}")
    jobs, page = results(tmp_path)
    assert ["not valid likelihoods" in job["figures"].get(CAUTION, "") for job in jobs] == [
        False, True, False,
    ]  # fmt: skip
    assert "| caution |" in page.splitlines()[0]
    jobs[1]["objective"] = 0.0  # by far the best, if it were one
    assert "reformer" not in (best_of(jobs) or "reformer")
    assert "best     model=" in printed


def test_an_experiment_knows_its_models_and_the_command_line_wins(tmp_path):
    small = (
        "data.num_sequences=64", "data.num_held_out=8", "trainer.max_steps=1",
        "trainer.val_check_interval=null", "trainer.check_val_every_n_epoch=1",
    )  # fmt: skip
    for place, chosen, models in (
        ("all", (), ["linear", "softmax", "lsh4"]), ("one", ("model=softmax",), ["softmax"]),
    ):  # fmt: skip
        run(
            "train", "-m", *QUICK, *small, *chosen, "experiment=copy/small", "test=false",
            f"paths.runs={tmp_path}/{place}",
        )  # fmt: skip
        jobs, _ = results(tmp_path / place)
        assert [job["status"] for job in jobs] == ["done"] * len(models)
        swept = [word for job in jobs for word in job["overrides"] if word.startswith("model=")]
        assert swept == [f"model={model}" for model in models]


def test_one_failing_job_does_not_end_a_sweep(tmp_path, capfd):
    with pytest.raises(SystemExit) as stopped:
        run("train", "-m", *QUICK, "model.num_heads=3,2", f"paths.runs={tmp_path}")
    assert stopped.value.code == 1
    said = capfd.readouterr().err
    assert "error: model_dim=16 does not divide into num_heads=3" in said
    assert "again    uv run train.py" in said
    assert "model.num_heads=3" in said.split("again")[1]
    assert len(list(tmp_path.glob("*/checkpoints/best.ckpt"))) == 1
    jobs, page = results(tmp_path)
    assert [job["status"] for job in jobs] == ["failed", "done"]
    assert "num_heads=3" in jobs[0]["message"]
    assert page.count("failed") == 1


def test_a_sweep_over_several_devices_is_refused(tmp_path, capfd):
    with pytest.raises(SystemExit):
        run("train", "-m", *QUICK, "trainer=ddp_cpu",
            f"paths.runs={tmp_path}")  # fmt: skip
    assert "one device" in capfd.readouterr().err


def test_what_was_measured_before_a_sweep_is_killed_is_kept(tmp_path, capsys):
    sweep = Sweep(tmp_path / "s", tmp_path)
    for number, (words, outcome, message) in enumerate(
        ((["a=1", "b=2"], Outcome(1.5, {"bits": 1.5}), ""), (["a=1", "b=3"], None, "no | good"))
    ):
        sweep.begin(number, words)
        sweep.end(number, outcome, message)
    sweep.begin(2, ["a=1", "b=4"])
    assert (tmp_path / "s/results.md").read_text().splitlines() == [
        "| job | b | bits | status |", "| --- | --- | --- | --- |", "| 0 | 2 | 1.5 | done |",
        "| 1 | 3 |  | failed |",
    ]  # fmt: skip
    missing = "uv run train.py -m b=2,3,4 sweep.skip_done=true"
    sweep.close(call="uv run train.py", missing=missing)
    assert "| 2 | 4 |  | killed |" in (tmp_path / "s/results.md").read_text()
    said = capsys.readouterr().err
    assert "job 2 killed: its process ended without a word" in said
    assert "missing  uv run train.py -m b=2,3,4 sweep.skip_done=true" in said


def test_seeds_have_a_mean_and_a_spread(tmp_path):
    sweep = Sweep(tmp_path, tmp_path)
    for number in range(4):
        words = [f"model={'ab'[number // 2]}", f"seed={number % 2}"]
        sweep.begin(number, words)
        sweep.end(number, Outcome(0.0, {"run": "x", "bits": 1.0 + number}), "")
    page = (tmp_path / "results.md").read_text()
    assert "| mean ± s.d. | a | 2 seeds |  | 1.5 ± 0.71 |" in page
    assert "| mean ± s.d. | b | 2 seeds |  | 3.5 ± 0.71 |" in page


def test_a_seed_that_a_search_proposes_again_is_one_seed(tmp_path):
    sweep = Sweep(tmp_path, tmp_path)
    for number, seed in enumerate([1, 2, 1, 1]):
        sweep.begin(number, [f"seed={seed}"])
        sweep.end(number, Outcome(0.0, {"bits": float(seed)}), "")
    assert "| mean ± s.d. | 2 seeds | 1.5 ± 0.71 |" in (tmp_path / "results.md").read_text()


def test_no_figure_is_cut_at_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"a_rather_long_name_{i}" for i in range(9)]
    rows = [{"job": j, **{name: 1000.123 * i + j for i, name in enumerate(names)}, "same": "s"}
            for j in range(3)]  # fmt: skip
    print_rows("3 jobs", rows)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for row in rows:
        assert all(str(rounded(row[name])) in printed for name in names)
    assert all(name.replace("_", " ") in printed for name in names)
    assert "same" not in printed


def test_texts_are_shown_as_they_are(capsys):
    """Brackets and colons are no markup."""
    words = ["hello [/INST] cat", "a [bold] :smile: [x]"]
    print_table("[sic]", *((word, word, word) for word in words))
    print_rows("[/b]", [{"job": i, "stop": word, "b": 1.0} for i, word in enumerate(words)])
    printed = capsys.readouterr().out
    assert [printed.count(word) for word in (*words, "[sic]", "[/b]")] == [4, 4, 1, 1]


def test_only_what_is_missing_runs_again(tmp_path, capfd):
    words = ("-m", *QUICK, "model.num_heads=3,2", f"paths.runs={tmp_path}", "test=false")
    with pytest.raises(SystemExit):
        run("train", *words)
    assert "sweep.skip_done=true" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        run("train", *words, "sweep.skip_done=true")
    said = capfd.readouterr().err
    assert "job 1 was done before" in said
    assert len(list(tmp_path.glob("*/config.yaml"))) == 1
    (folder,) = (tmp_path / "sweeps").iterdir()
    with pytest.raises(SystemExit):  # what was not asked to be left out runs again
        run("train", *words, f"hydra.sweep.dir={folder}")
    assert len(list(tmp_path.glob("*/config.yaml"))) == 2


def test_a_job_that_failed_ends_no_batch_and_is_told_once(tmp_path, capfd):
    words = ("-m", *QUICK, "model.num_heads=3,2", f"paths.runs={tmp_path}", "test=false")
    with pytest.raises(SystemExit) as ended:
        run("train", *words, "hydra.sweeper.max_batch_size=1")
    assert ended.value.code == 1
    assert "Error executing job" not in capfd.readouterr().err
    jobs, _ = results(tmp_path)
    assert [job["status"] for job in jobs] == ["failed", "done"]


def test_a_job_that_was_stopped_goes_on_where_it_was(tmp_path, capfd):
    words = (
        "-m", *QUICK, "trainer.max_steps=3", "trainer.max_epochs=3", "seed=1,2", "test=false",
        f"paths.runs={tmp_path}", *signal_at("train_batch_end", 2),
    )  # fmt: skip
    with pytest.raises(SystemExit):
        run("train", *words)
    _, page = results(tmp_path)
    (name,) = (path.parent.name for path in tmp_path.glob("*/config.yaml"))
    assert f"| {name} | failed |" in page
    said = capfd.readouterr().err
    (again,) = (line for line in said.splitlines() if line.startswith("again"))
    (folder,) = tmp_path.glob("sweeps/*")
    assert again.endswith(f"run_id={name} resume=auto group={folder.name}")
    with pytest.raises(SystemExit):  # the second job is stopped
        run("train", *words, "sweep.skip_done=true")
    printed = run("train", *words, "sweep.skip_done=true")
    assert "last.ckpt, step 2" in printed
    assert [job["status"] for job in results(tmp_path)[0]] == ["done", "done"]
    assert results(tmp_path)[0][0]["figures"]["run"] == name
    assert len(list(tmp_path.glob("*/config.yaml"))) == 2
    with pytest.raises(SystemExit):  # all of it, anew
        run("train", *words, f"hydra.sweep.dir={folder}")
    assert len(list(tmp_path.glob("*/config.yaml"))) == 3


def test_a_job_that_began_with_another_run_goes_on_with_its_own(tmp_path):
    sweep = Sweep(tmp_path, tmp_path)
    sweep.begin(0, ["seed=1", "resume=base", "run_id=a-${seed}"])
    sweep.note_run(0, "a-1")
    assert sweep.words_to_go_on(sweep.jobs[0]) == ["run_id=a-1"]  # nothing is kept yet
    (tmp_path / "a-1/checkpoints").mkdir(parents=True)
    (tmp_path / "a-1/checkpoints/last.ckpt").touch()
    assert sweep.words_to_go_on(sweep.jobs[0]) == ["run_id=a-1", "resume=auto"]


def test_what_a_search_has_done_stays_whatever_it_proposes_the_next_time(tmp_path):
    search = Sweep(tmp_path, tmp_path)
    for number, rate in enumerate((1, 2)):
        search.begin(number, [f"lr={rate}"])
        search.end(number, Outcome(float(rate)), "")
    again = Sweep(tmp_path, tmp_path, skip_done=True)
    assert again.begin(0, ["lr=2"])["objective"] == 2.0  # done, as another job
    assert again.begin(0, ["lr=3"])["status"] == "running"
    again.end(0, Outcome(3.0), "")
    known = [(job["job"], job["overrides"], job["objective"]) for job in again.jobs]
    assert known == [(0, ["lr=3"], 3.0), (1, ["lr=2"], 2.0), (2, ["lr=1"], 1.0)]


def test_a_folder_with_results_of_something_else_is_refused(tmp_path):
    (tmp_path / "results.md").write_text("mine")
    words = ("-m", *QUICK, f"paths.runs={tmp_path}/runs")
    assert "is no multirun's" in complaint("train", *words, f"hydra.sweep.dir={tmp_path}")
    assert (tmp_path / "results.md").read_text() == "mine"


def test_the_folder_of_a_multirun_may_be_named_by_the_day(tmp_path):
    words = ("-m", *QUICK, "test=false", f"paths.runs={tmp_path}", "seed=1")
    run("train", *words, f"++hydra.sweep.dir={tmp_path}/${{now:%Y}}/s")
    (page,) = tmp_path.rglob("results.md")
    assert page.parent.name == "s"
    assert page.parent.parent.name.isdigit()


def test_the_jobs_that_an_experiment_proposes_are_counted():
    conf = Configurations((CONF,), "train")
    for word, count in (("seed=1", 3), ("seed=1,2", 6), ("model=linear,softmax", 2)):
        assert jobs_of(conf, ["experiment=copy/small", word]) == (count, False)


def test_a_damaged_job_is_a_row_that_says_so(tmp_path, capsys):
    sweep = Sweep(tmp_path, tmp_path)
    sweep.begin(0, ["seed=1"])
    sweep.end(0, Outcome(1.0, {"bits": 1.0}), "")
    (tmp_path / "jobs/1.json").write_bytes(b"")
    sweep.close(call="train", missing="train -m sweep.skip_done=true")
    assert "1.json is no JSON" in capsys.readouterr().err
    assert sweep.begin(1, ["seed=2"])["status"] == "running"


def test_one_run_is_not_two_jobs(tmp_path, raises_one_line):
    """Whose names are the same only once they are resolved: the second would find it finished."""
    words = (*QUICK, f"paths.runs={tmp_path}", "test=false", "resume=auto")
    alike = ("--multi", "seed=1,2", "run_id=m-${model.num_layers}")
    message = complaint("train", *words, *alike)
    assert "run_id=m-2 names the run of job 0 and of job 1" in message
    assert (tmp_path / "m-2/checkpoints/last.ckpt").is_file()
    (folder,) = (tmp_path / "sweeps").iterdir()
    sweep = Sweep(folder, tmp_path)
    sweep.begin(5, sweep.jobs[0]["overrides"], run_id="m-2")  # the same job again
    longer = ("trainer.max_steps=3", "trainer.max_epochs=3", "resume=m-2")
    message = complaint("train", "-m", *words[:-1], *longer, "data.seed=0,1")
    assert "run_id=m-2 names the run of job 0 and of job 1" in message
    with pytest.raises(SystemExit) as ended:  # of two jobs, one has nothing to go on with
        run("train", "-m", *words[:-1], *longer[:-1], "resume=nowhere,m-2")
    assert ended.value.code == 1
    folder = max(tmp_path.glob("sweeps/*"))
    jobs = json.loads((folder / "results.json").read_text())
    assert [job["status"] for job in jobs] == ["failed", "done"]


def test_two_multiruns_do_not_share_a_folder(tmp_path):
    sweep = Sweep.open(tmp_path, command=["-m"])
    again = Sweep.open(tmp_path, command=["-m"], skip_done=True)
    assert again.folder == sweep.folder
    with sweep.held(), pytest.raises(ValueError, match="is being trained by process"), again.held():
        pass
    sweep.close(call="", missing="")
    assert not sweep.folder.exists()


def test_a_multirun_that_is_refused_leaves_the_other_alone(tmp_path):
    other = Sweep.open(tmp_path, command=["-m"])
    words = ("-m", *QUICK, f"paths.runs={tmp_path}", f"hydra.sweep.dir={other.folder}")
    with other.held():
        assert "is being trained by" in complaint("train", *words)
        assert other.folder.is_dir()
        other.begin(0, ["seed=1"])
        assert "is being trained by" in complaint("train", *words)
    assert [job["status"] for job in other.jobs] == ["running"]


def test_a_multirun_without_a_job_says_so(tmp_path):
    words = ("-m", *QUICK, "model=glob(zzz*)", f"paths.runs={tmp_path}")
    assert "there was no job" in complaint("train", *words)
    assert not list(tmp_path.glob("sweeps/*"))


def test_a_choice_within_the_models_that_are_swept_is_each_jobs(tmp_path):
    """The model that is proposed without them, `delta`, has no feature map."""
    words = ("-m", "model=linear,linear_conv", "model/feature_map=relu", "test=false")
    run("train", *QUICK, *words, f"paths.runs={tmp_path}")
    jobs, page = results(tmp_path)
    assert [job["status"] for job in jobs] == ["done", "done"]
    assert all("model/feature_map=relu" in job["overrides"] for job in jobs)
    assert "feature_map" not in page
    for word in ("+hydra/launcher=joblib", "experiment=paper/mnist", "model/feature_map=elu,relu"):
        assert of_each_job(word) == word


def test_choices_may_be_globbed(tmp_path):
    words = ("-m", *QUICK, "scheduler=glob([c*,s*])", "test=false", f"paths.runs={tmp_path}")
    run("train", *words)
    words = {word for job in results(tmp_path)[0] for word in job["overrides"]}
    assert {"scheduler=constant", "scheduler=step_down"} <= words


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_jobs_side_by_side_make_the_same_table(tmp_path, launcher):
    """In processes of their own: each has its row, and the parent prints all."""
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
    printed = run_apart(
        "train", "-m", *QUICK, "seed=1,2", "test=false", f"paths.runs={tmp_path}",
        f"hydra/launcher={launcher}",
    )  # fmt: skip
    jobs, _ = results(tmp_path)
    assert [(job["job"], job["status"]) for job in jobs] == [(0, "done"), (1, "done")]
    assert "2 jobs" in printed
    assert "2 seeds" in printed
    assert len(list(tmp_path.glob("*/checkpoints/last.ckpt"))) == 2


def test_a_killed_job_is_a_row_that_says_so(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = (
        "-m", *QUICK, "seed=1,2", "test=false", f"paths.runs={tmp_path}", "hydra/launcher=joblib",
        *signal_at("train_batch_end", 1, "SIGKILL"),
    )  # fmt: skip
    outcome = subprocess.run(
        [sys.executable, PROJECT / "train.py", *words], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    assert outcome.returncode == 1
    assert "Traceback" not in outcome.stderr
    assert "killed: its process ended without a word" in outcome.stderr
    assert "sweep.skip_done=true" in outcome.stderr
    assert "killed" in {job["status"] for job in results(tmp_path)[0]}


def test_a_search_goes_by_the_validation_figure(tmp_path):
    optuna = pytest.importorskip("optuna")
    storage = f"sqlite:///{tmp_path}/search.db"
    printed = run_apart(
        "train", "-m", *QUICK, "hydra/sweeper=search", "hydra.sweeper.n_trials=3",
        f"paths.runs={tmp_path}", f"hydra.sweeper.storage={storage}", "hydra.sweeper.study_name=a",
    )  # fmt: skip
    jobs, page = results(tmp_path)
    best = min(jobs, key=lambda job: job["figures"]["val_bits_per_dim"])
    assert [job["objective"] for job in jobs] == [
        job["figures"]["val_bits_per_dim"] for job in jobs
    ]
    (rate,) = [word for word in best["overrides"] if word.startswith("optimizer.lr=")]
    assert rate.partition("=")[2] in page
    assert f"Best value: {best['objective']}" in printed
    assert optuna.load_study(study_name="a", storage=storage).best_value == best["objective"]


@pytest.mark.filterwarnings("ignore")  # of Optuna's own
@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (("model.num_heads=3",), "No trials are completed", ["failed"] * 2),
        (("test=false", "trainer.limit_val_batches=0"), "search goes by figures of val", ["done"]),
    ],
)
def test_a_search_goes_on_after_a_job_that_fails_and_ends_at_one_without_a_figure(
    tmp_path, words, said, status
):
    pytest.importorskip("optuna")
    search = ("-m", *QUICK, "hydra/sweeper=search", "hydra.sweeper.n_trials=2", *words)
    assert said in complaint("train", *search, f"paths.runs={tmp_path}")
    assert [job["status"] for job in results(tmp_path)[0]] == status


@pytest.mark.filterwarnings("ignore")  # of Optuna's own
def test_a_search_that_found_something_ends_well_whatever_failed(tmp_path):
    pytest.importorskip("optuna")
    run(
        "train", "-m", *QUICK, "hydra/sweeper=search", "hydra.sweeper.n_trials=4", "test=false",
        "hydra.sweeper.params=null", "model.dropout=0.0,2.0", f"paths.runs={tmp_path}",
    )  # fmt: skip
    assert {job["status"] for job in results(tmp_path)[0]} == {"done", "failed"}


def test_the_jobs_of_two_commands_do_not_share_a_folder(tmp_path):
    base = ("-m", *QUICK, "test=false", f"paths.runs={tmp_path}", f"hydra.sweep.dir={tmp_path}/s")
    run("train", *base, "seed=1,2")
    message = complaint("train", *base, "model=linear,softmax")
    assert "s has the jobs of another multirun" in message
    jobs = json.loads((tmp_path / "s/results.json").read_text())
    assert [job["overrides"][-1] for job in jobs] == ["seed=1", "seed=2"]
    run("train", *base, "seed=1,2", "sweep.skip_done=true")


def test_a_launcher_that_is_not_installed_is_named_with_its_package():
    conf = Configurations.of("train")
    error = MissingConfigException("", missing_cfg_file="hydra/launcher/joblib")
    assert "hydra/launcher=joblib needs a package" in about_composition(error, conf)
    error = MissingConfigException("", missing_cfg_file="hydra/sweeper/optuna")
    assert "hydra/sweeper=optuna needs a package" in about_composition(error, conf)


def test_a_misspelt_launcher_is_told_the_nearest():
    error = MissingConfigException("", missing_cfg_file="hydra/launcher/jobib")
    assert "Did you mean joblib?" in about_composition(error, Configurations.of("train"))
