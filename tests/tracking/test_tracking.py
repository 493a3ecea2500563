"""What a run tells its trackers, read back with each tracker's own reader."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from dataclasses import replace

import pytest
import wandb
import yaml
from lightning.pytorch.utilities import rank_zero_only

from linear_transformers.calls import call_with
from linear_transformers.runs.metrics import summary
from linear_transformers.tracking import Description, MLflowTracker, Record, WandbTracker
from tests.conftest import PROJECT
from tests.programs import (
    QUICK,
    complaint,
    every,
    figures,
    metrics,
    read_back,
    run,
    run_apart,
    wandb_runs,
)  # fmt: skip

# The last choice of a group on a command line counts: QUICK says logger=none.
WATCHED = (*QUICK, "logger=wandb")


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """No key, no settings, no network: a machine that has never heard of W&B."""
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home/netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home/config"))
    wandb.teardown()  # it reads the environment once
    yield monkeypatch
    wandb.teardown()


@pytest.fixture
def described(tmp_path) -> Description:
    (tmp_path / "a").mkdir()
    return Description(
        folder=tmp_path / "a", runs=tmp_path, name="a", job_type="train", group="g",
        tags=("one", "two"), figures=(), config={"seed": 3},
    )  # fmt: skip


def test_an_offline_run_holds_everything_that_was_promised(tmp_path):
    printed = run(
        "train", *WATCHED, f"paths.runs={tmp_path}", "run_id=a", "tags=[mine,two]", "seed=3",
        "trainer.max_epochs=2",
    )  # fmt: skip
    (log,) = wandb_runs(tmp_path)
    read = read_back(log)
    about = read["run"]
    kept = json.loads((tmp_path / "a/trackers.json").read_text())["wandb"]
    assert (about["run_id"], about["display_name"], about["run_group"]) == (kept, "a", "a")
    assert (about["job_type"], about["project"]) == ("train", "linear-transformers")
    assert about["tags"] == ["mine", "two"]
    config = read["config"]
    assert config["seed"] == 3
    assert config["model"]["mixer"]["_target_"].endswith("DeltaNet")
    assert config["trainer"]["max_epochs"] == 2
    assert config["choices"]["model"] == "delta"
    assert config["provenance"]["command"].startswith("uv run train.py")
    assert config["provenance"].keys() >= {"commit", "clean", "machine", "versions"}
    ours = metrics(tmp_path / "a")
    for name in (
        "train/bits_per_dim", "val/bits_per_dim", "test/bits_per_dim", "lr-Muon/pg1",
        "train/gradient_norm", "perf/tokens_per_second", "perf/model_flop_utilization",
        "perf/peak_memory_gb",
    ):  # fmt: skip
        values = [row[name] for row in ours if name in row]
        assert values
        assert every(read, name) == pytest.approx(values)
    for name in ("train/bits_per_dim", "val/bits_per_dim"):  # each over the run's own steps
        steps = [row["trainer/global_step"] for row in read["history"] if name in row]
        assert steps == [row["step"] for row in ours if name in row]
    assert {"glob_name": "*", "step_metric": "trainer/global_step"}.items() <= next(
        metric for metric in read["metrics"] if metric.get("glob_name") == "*"
    ).items()
    assert read["summary"]["test/bits_per_dim"] == pytest.approx(
        every(read, "test/bits_per_dim")[-1]
    )
    # A baseline is one number, and no chart.
    (neighbours,) = (row["baseline/neighbours"] for row in ours if "baseline/neighbours" in row)
    assert read["summary"]["baseline/neighbours"] == pytest.approx(neighbours)
    assert not any("baseline/neighbours" in row for row in read["history"])
    for name, count in (("generated", 2), ("completed", 2), ("test", 1)):
        paths = every(read, f"samples/{name}.path")
        assert len(paths) == count
        for path in paths:
            assert (log.parent / "files" / path).read_bytes().startswith(b"\x89PNG")
    (table,) = every(read, "speed/sampling.path")
    columns = json.loads((log.parent / "files" / table).read_text())["columns"]
    assert columns == ["form", "milliseconds_per_step", "images_per_second", "ratio"]
    assert read["exit"][0].get("exit_code", 0) == 0
    assert not read["artifacts"]
    assert "uv run wandb leet" in printed
    assert "uv run wandb sync" in printed
    assert str(tmp_path / "a/wandb") in printed


def test_the_cpu_demo_needs_no_account(nobody, tmp_path):
    printed = run("train", *WATCHED, f"paths.runs={tmp_path}", "run_id=a", "test=false")
    assert "W&B is offline: no API key" in printed
    assert len(wandb_runs(tmp_path)) == 1


@pytest.mark.parametrize("port", [9, None], ids=["nobody", "silence"])
def test_a_server_that_cannot_be_reached_holds_nothing_up(nobody, described, port):
    """Nobody listens on the loopback's port 9; the other server takes calls, and never answers.
    The bound is the promise: 15 seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody.setenv("WANDB_API_KEY", "a" * 40)
        nobody.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port or server.getsockname()[1]}")
        tracker = WandbTracker(described)
        start = time.monotonic()
        line = tracker.start()
        took = time.monotonic() - start
    assert took < 15
    tracker.log_metrics({"val/bits_per_dim": 1.5}, 7)
    tracker.finish(failed=False)
    assert "no answer from the server" in line
    (log,) = wandb_runs(described.folder)  # and nothing is left of the attempt
    assert log.parent.name.startswith("offline-run-")
    assert every(read_back(log), "val/bits_per_dim") == [1.5]


@pytest.mark.parametrize("key", [None, "short"])
def test_insisting_on_a_server_without_a_key_is_refused(nobody, described, key, raises_one_line):
    if key is not None:
        nobody.setenv("WANDB_API_KEY", key)
    with raises_one_line("mode=online", "API key", "mode=offline"):
        WandbTracker(described, mode="online").start()


def test_insisting_on_a_server_that_is_not_there_is_refused(nobody, described, raises_one_line):
    nobody.setenv("WANDB_API_KEY", "a" * 40)
    nobody.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with raises_one_line("mode=online", "no answer"):
        WandbTracker(described, mode="online", init_timeout=1.0).start()


def test_an_unknown_mode_is_refused(tmp_path):
    message = complaint("train", *WATCHED, "logger.wandb.mode=on", f"paths.runs={tmp_path}")
    assert "logger.wandb.mode=on " in message
    assert not list(tmp_path.iterdir())


def test_wandb_can_be_turned_off_from_outside(nobody, tmp_path):
    nobody.setenv("WANDB_MODE", "disabled")
    printed = run("train", *WATCHED, f"paths.runs={tmp_path}", "run_id=a", "test=false")
    assert "W&B is off" in printed
    assert not wandb_runs(tmp_path)


def test_a_mode_of_the_environment_that_there_is_not_is_named(nobody, described, raises_one_line):
    nobody.setenv("WANDB_MODE", "sometimes")
    with raises_one_line("WANDB_MODE=sometimes", "'offline'"):
        WandbTracker(described).start()


@pytest.mark.parametrize("name", ["a/b", "a" * 129])
def test_a_project_that_wandb_does_not_take_is_refused(nobody, described, name, raises_one_line):
    with raises_one_line("logger.wandb.project=a", "W&B takes"):
        WandbTracker(described, project=name)
    nobody.setenv("WANDB_PROJECT", name)
    with raises_one_line("WANDB_PROJECT=a", "W&B takes"):
        WandbTracker(described)


def test_a_resumed_run_continues_the_same_wandb_run(tmp_path):
    for more in ((), ("resume=a", "trainer.max_epochs=2")):
        run("train", *WATCHED, f"paths.runs={tmp_path}", "run_id=a", "test=false", *more)
    first, second = (read_back(log) for log in wandb_runs(tmp_path))
    assert first["run"]["run_id"] == second["run"]["run_id"]
    last = max(row["trainer/global_step"] for row in first["history"])
    assert max(row["trainer/global_step"] for row in second["history"]) > last


def test_each_job_of_a_multirun_is_a_run_of_its_own(tmp_path):
    run(
        "train", "-m", *WATCHED, "model=linear", "model/feature_map=elu,relu",
        f"paths.runs={tmp_path}", "test=false",
    )  # fmt: skip
    read = [read_back(log) for log in wandb_runs(tmp_path)]
    assert len({one["run"]["run_id"] for one in read}) == 2
    maps = {
        one["config"]["model"]["mixer"]["attention"]["feature_map"]["_target_"].rsplit(".")[-1]
        for one in read
    }
    assert maps == {"Elu", "Relu"}
    (group,) = {one["run"]["run_group"] for one in read}  # the sweep's
    assert (tmp_path / "sweeps" / group).is_dir()
    for one in read:
        assert len(every(one, "val/bits_per_dim")) == 1  # and nothing of the other's
        assert one["exit"]


def test_checkpoints_become_artifacts_only_when_asked(tmp_path):
    run(
        "train", *WATCHED, f"paths.runs={tmp_path}", "run_id=a", "test=false",
        "logger.wandb.log_model=true",
    )  # fmt: skip
    artifacts = read_back(wandb_runs(tmp_path)[0])["artifacts"]
    # W&B itself calls each new one `latest` and takes the word from the one before.
    assert [sorted(kept["aliases"]) for kept in artifacts] == [["best", "latest"], ["latest"]]


def test_a_later_process_says_nothing(described, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    tracker = WandbTracker(described)
    tracker.log_metrics({"a": 1.0}, 0)
    tracker.finish(failed=False)
    assert not list(described.folder.iterdir())


def test_samples_are_a_job_in_the_runs_group(tmp_path):
    run("train", *WATCHED, f"paths.runs={tmp_path}", "run_id=a", "test=false", "tags=[mine]")
    run("sample", f"paths.runs={tmp_path}", "ckpt=a", "images=3", "logger=wandb", "seed=4")
    trained, sampled = (
        read_back(log)
        for folder in ("a/wandb", "a/samples")
        for log in (tmp_path / folder).rglob("*.wandb")
        if "latest-run" not in str(log)
    )
    assert sampled["run"]["job_type"] == "sample"
    assert sampled["run"]["run_group"] == trained["run"]["run_group"] == "a"
    assert sampled["run"]["tags"] == ["mine"]
    assert sampled["config"]["sample"]["seed"] == 4
    assert sampled["config"]["model"] == trained["config"]["model"]
    for name in ("sample/grid.path", "sample/animation.path", "sample/images.path"):
        assert len(every(sampled, name)) == 1
    assert every(sampled, "sample/images_per_second")[0] > 0


def test_tensorboard_shows_figures_pictures_and_the_configuration(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for more in ((), ("resume=a", "trainer.max_epochs=2")):
        printed = run(
            "train", *QUICK, "logger=tensorboard", f"paths.runs={tmp_path}", "run_id=a", *more
        )
    assert "tensorboard --logdir" in printed
    events = reader.EventAccumulator(str(tmp_path / "a/tensorboard")).Reload()
    tags = events.Tags()
    ours = figures(tmp_path / "a", "val/bits_per_dim")
    assert [scalar.value for scalar in events.Scalars("val/bits_per_dim")] == pytest.approx(ours)
    assert len(ours) == 2
    assert {"samples/generated", "samples/completed", "samples/test"} <= set(tags["images"])
    assert any("speed/sampling" in tag for tag in tags["tensors"])
    assert any("summary" in tag for tag in tags["tensors"])
    assert not any("baseline" in tag for tag in tags["scalars"])  # no curve: a table
    assert "seed: 0" in (tmp_path / "a/tensorboard/hparams.yaml").read_text()


@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_mlflow_keeps_one_run_in_one_database(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking")
    words = (*QUICK, "logger=mlflow", f"paths.runs={tmp_path}", "run_id=a", "tags=[mine]")
    # In a process of its own: MLflow warns a great deal of its own code.
    printed = run_apart("train", *words)
    assert "uv run --extra mlflow mlflow ui --backend-store-uri sqlite:///" in printed
    assert not re.search(r"INFO|WARNING|alembic|Creating initial", printed)
    run("train", *words, "resume=a", "trainer.max_epochs=2")
    client = tracking.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = [x for x in client.search_experiments() if x.name == "linear-transformers"]
    (mlflow_run,) = client.search_runs([experiment.experiment_id])
    assert mlflow_run.info.run_name == "a"
    assert mlflow_run.info.status == "FINISHED"
    assert mlflow_run.data.params["trainer/max_epochs"] == "1"
    assert {
        "job_type": "train",
        "group": "a",
        "mine": "true",
    }.items() <= mlflow_run.data.tags.items()
    found = client.get_metric_history(mlflow_run.info.run_id, "val/bits_per_dim")
    ours = figures(tmp_path / "a", "val/bits_per_dim")
    assert [metric.value for metric in found] == pytest.approx(ours)
    assert len(list((tmp_path / "mlflow").rglob("images/*.png"))) == 2 * 3
    assert list((tmp_path / "mlflow").rglob("sampling.md"))


@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_a_server_of_mlflow_that_goes_away_ends_no_run(described, monkeypatch, capsys):
    exceptions = pytest.importorskip("mlflow.exceptions")
    tracker = MLflowTracker(described)
    tracker.start()
    asked = []

    def gone(*args, **kwargs):
        asked.append(args)
        raise exceptions.MlflowException("API request failed:\nconnection refused")

    for name in ("log_batch", "log_artifact", "set_terminated"):
        monkeypatch.setattr(tracker.experiment, name, gone)
    for step in range(2):
        tracker.log_metrics({"loss": 1.0}, step)
    tracker.log_audio("a", described.folder / "none.wav", "", 0)
    tracker.finish(failed=False)
    assert len(asked) == 1
    assert capsys.readouterr().err.splitlines() == [
        "caution  logger.mlflow: API request failed: MLflow is told no more"
    ]


@pytest.mark.filterwarnings("ignore")  # of MLflow's own
def test_a_configuration_that_mlflow_refuses_is_one_line(described, raises_one_line):
    pytest.importorskip("mlflow")
    tracker = MLflowTracker(replace(described, config={"a#b": 1}))
    with raises_one_line("logger.mlflow: ", "a#b"):
        tracker.start()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch, name):
    def missing(*args, **kwargs):
        raise ModuleNotFoundError(f"No module named {name!r}")

    base = {"tensorboard": "TensorBoardLogger", "mlflow": "MLFlowLogger"}[name]
    monkeypatch.setattr(f"linear_transformers.tracking.{name}.{base}.__init__", missing)
    line = [*QUICK, f"logger={name}", f"paths.runs={tmp_path}"]
    advice = shlex.join(["uv", "run", "--extra", name, "train.py", *line])
    assert complaint("train", *line).endswith(f"not installed: {advice}")
    monkeypatch.setattr("sys.argv", ["/bin/linear-transformers", "train", *line])
    assert call_with(name) == f"pip install 'linear-transformers[{name}]'"
    assert not list(tmp_path.iterdir())


def test_several_trackers_can_watch_one_run(tmp_path):
    pytest.importorskip("tensorboard")
    board = "+logger.tensorboard._target_=linear_transformers.tracking.TensorBoardTracker"
    run("train", *WATCHED, board, f"paths.runs={tmp_path}", "run_id=a", "test=false")
    assert wandb_runs(tmp_path)
    assert list((tmp_path / "a/tensorboard").glob("events*"))


def test_trackers_take_what_they_have_no_place_for(described):
    tracker = Record(described.folder / "metrics.jsonl")
    tracker.log_picture("a", described.folder / "none.png", 0)
    tracker.log_audio("a", described.folder / "none.wav", "", 0)
    tracker.log_checkpoints({"best": described.folder})
    assert not list(described.folder.iterdir())


def test_a_summary_has_what_the_record_has(tmp_path):
    assert summary(tmp_path / "nothing") == {}
    rows = [
        {"time": 0.0, "step": None, "figures": {"loss": "min"}},  # of a start that did not begin
        {"time": 0.0, "step": None, "figures": {"bits_per_dim": "min", "accuracy": "max"}},
        {"time": 0.0, "step": 0, "val/accuracy": 0.5, "perf/tokens_per_second": 10.0},
        {"time": 60.0, "step": 5, "val/bits_per_dim": 2.0},
        {"time": 90.0, "step": 9, "val/bits_per_dim": 1.5, "perf/tokens_per_second": 30.0},
        {"time": 120.0, "step": 9, "val/bits_per_dim": 1.75, "val/accuracy": 0.25},
        # A second start, which goes on.
        {"time": 1200.0, "step": None, "figures": {"bits_per_dim": "min", "accuracy": "max"}},
        {"time": 1260.0, "step": 11, "perf/seconds_per_epoch": 3.0},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert summary(tmp_path / "m.jsonl") == {
        "val_bits_per_dim": 1.5, "val_accuracy": 0.5, "tokens_per_second": 20,
        "seconds_per_epoch": 3.0, "steps": 12, "minutes": 3.0,
    }  # fmt: skip


def test_a_run_outlives_its_service_of_wandb(described, capsys):
    """Schedulers that end a job send SIGTERM to each of its processes, and this one obeys."""
    tracker = WandbTracker(described, mode="offline")
    tracker.start()
    tracker.log_metrics({"loss": 1.0}, 1)
    mine = ["pgrep", "--parent", str(os.getpid()), "wandb-core"]
    service = int(subprocess.run(mine, capture_output=True, text=True, check=True).stdout)
    os.kill(service, signal.SIGTERM)
    os.waitid(os.P_PID, service, os.WEXITED | os.WNOWAIT)
    for step in range(2, 12):  # the first ones only fill a buffer
        tracker.log_metrics({"loss": 0.0}, step)
    tracker.log_summary({"best": 0.0}, 12)
    tracker.finish(failed=True)
    assert capsys.readouterr().err.count("W&B is told no more") == 1
    again = WandbTracker(described, mode="offline")
    again.start()
    again.log_metrics({"loss": 2.0}, 13)
    again.finish(failed=False)
    assert every(read_back(wandb_runs(described.folder)[1]), "loss") == [2.0]


def test_a_run_of_a_wandb_sweep_is_the_one_that_its_agent_waits_for(nobody, described):
    nobody.setenv("WANDB_SWEEP_ID", "s1")
    nobody.setenv("WANDB_RUN_ID", "r1")
    tracker = WandbTracker(described, mode="offline")
    tracker.start()
    tracker.finish(failed=False)
    (log,) = wandb_runs(described.folder)
    about = read_back(log)["run"]
    assert (about["run_id"], about["sweep_id"]) == ("r1", "s1")


def test_the_wandb_sweep_of_this_project_names_what_there_is(tmp_path):
    sweep = yaml.safe_load((PROJECT / "cluster/sweep.yaml").read_text())
    chosen = {key: about.get("values", [about.get("min")])[-1]
              for key, about in sweep["parameters"].items()}  # fmt: skip
    words = [f"{key}={value}" for key, value in chosen.items()]  # as ${args_no_hyphens} has them
    words += [word for word in sweep["command"] if "=" in word]
    run(sweep["program"].removesuffix(".py"), *words, *QUICK, f"paths.runs={tmp_path}", "run_id=a")
    assert figures(tmp_path / "a", sweep["metric"]["name"])
    config = yaml.safe_load((tmp_path / "a/config.yaml").read_text())
    assert config["optimizer"]["lr"] == chosen["optimizer.lr"]
    assert config["model"]["dropout"] == chosen["model.dropout"]
