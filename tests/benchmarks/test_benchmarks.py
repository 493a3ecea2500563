"""The benchmarks run and their figures arrive in RESULTS.md; how fast is not tested."""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from datetime import date, timedelta
from statistics import fmean

import pytest
import torch

from benchmarks import (
    collect,
    goals,
    operators,
    peers,
    positions,
    precision,
    record,
    report,
    sampling,
    scaling,
    training,
)
from benchmarks.apart import run_apart
from benchmarks.machine import thread_count
from linear_transformers import kernels
from linear_transformers.data.sequences import to_sequences
from linear_transformers.pictures.tables import rounded
from linear_transformers.provenance import (
    checkout,
    command,
    machine,
    provenance,
    versions,
    write_provenance,
)
from linear_transformers.sampling import bits_per_dim
from linear_transformers.tasks.loading import load
from tests.conftest import PROJECT
from tests.programs import QUICK, run


def call(program, monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [program.__file__, *arguments])
    program.main()


def test_sampling_is_measured_side_by_side(results, monkeypatch, capsys):
    call(
        sampling, monkeypatch, "--length", "20", "9",
        "--layers=1", "--heads=2", "--model-dim=16",
        "--batch", "1", "3", "--positions=2", "--steps=2", "--rounds=1", "--device=cpu",
        "--threads", "1", "2",
        "--methods", "compiled int8", "recurrent", "softmax, cached", "softmax, recomputed",
    )  # fmt: skip
    measurement = json.loads((results / "sampling-cpu.json").read_text())
    rows = measurement["rows"]
    methods = ("compiled int8", "recurrent", "softmax, cached", "softmax, recomputed")
    assert [tuple(row.values())[:4] for row in rows] == [
        (length, batch, threads, method)
        for length in (20, 9)
        for batch in (1, 3)
        for threads in (1, 2)
        for method in methods[: 2 + threads]  # recomputed only with the most threads
    ]
    for row in rows:
        expected = 1000 * row["batch"] / (row["length"] * row["ms_per_step"])
        assert row["images_per_second"] == pytest.approx(expected, rel=0.01)
    assert "| times as fast as | batch | length | recurrent |" in capsys.readouterr().out
    assert measurement["summary"] == sampling.summary(rows)
    assert measurement["command"].startswith("uv run python -m benchmarks.sampling --length 20 9 ")
    assert "softmax, cached" in shlex.split(measurement["command"])


def test_a_method_that_cannot_run_is_named_and_threads_stay_as_they_were(
    results, monkeypatch, capsys
):
    monkeypatch.setattr(kernels, "step_unavailable", lambda: "there is no compiler")
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with thread_count(3):
        call(
            sampling, monkeypatch, "--length=9", "--layers=1", "--heads=2", "--model-dim=16",
            "--batch=1", "--positions=1", "--steps=1", "--rounds=1", "--device=cpu", "--threads=1",
            "--methods", "compiled", "fast-transformers", "recurrent",
        )  # fmt: skip
        assert torch.get_num_threads() == 3
    rows = json.loads((results / "sampling-cpu.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["recurrent"]
    printed = capsys.readouterr().out
    assert "compiled is not measured: there is no compiler\n" in printed
    assert "fast-transformers is not measured: pytorch-fast-transformers is not ins" in printed


def test_a_measurement_says_what_it_depends_on(results, monkeypatch):
    began = time.monotonic()
    call(
        operators, monkeypatch, "--shapes", "1x9", "--threads", "1", "--rounds=1", "--heads=2",
        "--head-dim=8", "--kernels", "chunkwise", "--device=cpu",
    )  # fmt: skip
    path = results / "operators-cpu.json"
    measurement = json.loads(path.read_text())
    assert measurement["command"] == (
        "uv run python -m benchmarks.operators --shapes 1x9 --threads 1 --rounds=1 --heads=2 "
        "--head-dim=8 --kernels chunkwise --device=cpu"
    )
    assert {key: measurement[key] for key in ("commit", "clean")} == checkout()
    if measurement["commit"] is not None:  # the tests run in a checkout
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True)
        assert measurement["commit"] == head.stdout.decode().strip()
        assert record.lacking(measurement) == []
    assert abs(date.fromisoformat(measurement["date"]) - date.today()) <= timedelta(days=1)
    assert measurement["machine"] == machine()
    assert measurement["versions"] == versions()
    assert (measurement["device"], measurement["seeds"]) == ("cpu", [0])
    assert measurement["threads"] == torch.get_num_threads()
    assert 0 < measurement["seconds"] <= time.monotonic() - began + 0.1
    assert "summary" not in measurement  # there was nothing to compare with
    assert [file.name for file in results.iterdir()] == [path.name]


def test_kernels_are_measured_side_by_side(results, monkeypatch, capsys):
    call(
        operators, monkeypatch, "--shapes", "2x20", "1x9", "--threads", "1", "--rounds=1",
        "--heads=2", "--head-dim=8", "--kernels", "parallel", "chunkwise", "sdpa", "--device=cpu",
    )  # fmt: skip
    rows = json.loads((results / "operators-cpu.json").read_text())["rows"]
    assert [(row["batch"], row["length"], row["kernel"]) for row in rows] == [
        (*size, name) for size in ((2, 20), (1, 9)) for name in ("parallel", "chunkwise", "sdpa")
    ]
    assert all(row["forward_ms"] > 0 < row["backward_ms"] for row in rows)
    assert all(("share_of_peak" in row) == (row["kernel"] == "chunkwise") for row in rows)
    assert "chunkwise" in capsys.readouterr().out


def test_training_steps_are_measured_side_by_side(results, monkeypatch, capsys):
    call(
        training, monkeypatch, "--shapes", "digits", "--batch=2", "--threads", "1", "--rounds=1",
        "--methods", "linear", "softmax", "fla", "--device=cpu",
    )  # fmt: skip
    rows = json.loads((results / "training-cpu.json").read_text())["rows"]
    cases = [(row["shape"], row["method"]) for row in rows]
    assert cases == [("digits", "linear"), ("digits", "softmax")]
    assert rows[0]["times_softmax"] > 0 < rows[0]["share_of_peak"]
    assert rows[1]["times_softmax"] == 1
    printed = capsys.readouterr().out
    assert "fla is not measured" in printed
    assert "2 x 64, threads: 1" in printed


def test_the_peers_layers_learn_from_the_same_inputs():
    """With our positions, embedding and head; and what comes later is invisible to them, too."""
    pytest.importorskip("fast_transformers")
    shape = training.SHAPES["digits"]._replace(batch=2)
    model = training.model_of(peers.FAST_TRANSFORMERS, shape).eval()
    values = torch.randint(shape.num_values, (2, shape.length))
    changed = values.clone()
    changed[:, 40:] = 0
    outputs, others = model(values), model(changed)
    torch.testing.assert_close(outputs[:, :40], others[:, :40])
    assert not torch.equal(outputs[:, 40:], others[:, 40:])
    outputs.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore")  # fast_transformers' own, of a PyTorch that is no more
def test_the_peers_step_is_the_models():
    """From a prefilled state that is forked, as the benchmark of sampling has it."""
    pytest.importorskip("fast_transformers")
    options = argparse.Namespace(layers=2, heads=2, model_dim=32, device="cpu")
    model = sampling.build(12, options)["linear"]
    values = torch.randint(sampling.NUM_VALUES, (3, 12))
    stepper = peers.FastTransformersStepper(model)
    with torch.inference_mode():
        parameters, state = stepper.prefill(values[:1, :4])
        state = stepper.select(state, torch.zeros(3, dtype=torch.long))
        values[:, :4] = values[0, :4]
        for place in range(4, 12):
            parameters, state = stepper.step(values[:, place], state)
            expected = model.prefill(values[:, : place + 1])[0][:, -1]
            torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # fla's own, of what it lacks here
def test_flas_kernel_takes_the_place_of_ours():
    """Here it is built only: it runs on GPUs."""
    pytest.importorskip("fla")
    model = training.model_of(peers.FLA, training.SHAPES["digits"])
    assert all(isinstance(m.mixer.attention, peers.FlaLinearAttention) for m in model.stack.blocks)


FAILING = f"""#!{sys.executable} -IS
import os, sys, time
words = sys.argv
kernel = words[words.index("--kernels") + 1]
for shape in words[words.index("--shapes") + 1 : words.index("--dtype")]:
    if (kernel, shape) == ("falls", "1x2"):
        print("an illegal memory access", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 11)
    if (kernel, shape) == ("hangs", "1x2"):
        time.sleep(60)
    print('{{"kernel": "%s", "shape": "%s"}}' % (kernel, shape), flush=True)
"""


def test_a_kernel_that_fails_costs_only_its_own_row(monkeypatch, tmp_path):
    """A program that dies or hangs at one shape stands in for the process of a kernel."""
    program = tmp_path / "python"
    program.write_text(FAILING)
    program.chmod(0o755)
    monkeypatch.setattr(operators.sys, "executable", str(program))
    monkeypatch.setattr(operators, "SECONDS", 2)
    options = argparse.Namespace(
        seconds=60, kernels=["falls", "hangs", "runs"], shapes=[], rounds=1, heads=1, head_dim=1,
        device="cpu",
    )  # fmt: skip
    cases = [operators.Case(shape, "float32", 1) for shape in ("1x1", "1x2", "1x3")]
    rows = list(operators.apart(cases, options))
    found = [(row["kernel"], row.get("shape") or row["error"]) for row in rows]
    assert found == [
        ("falls", "1x1"), ("falls", "signal 11: an illegal memory access"), ("falls", "1x3"),
        ("hangs", "1x1"), ("hangs", "more than 2 s"), ("hangs", "1x3"),
        ("runs", "1x1"), ("runs", "1x2"), ("runs", "1x3"),
    ]  # fmt: skip
    options.seconds = 0
    assert {row["error"] for row in operators.apart(cases, options)} == {
        "the time of all processes was up"
    }


@pytest.mark.parametrize("name", ["tritton", "triton@wraps=4", "triton@warps=0", "cpp@warps=4"])
def test_a_kernel_that_is_unknown_is_refused_at_once(monkeypatch, name):
    with pytest.raises(SystemExit, match=f"error: {name} is not a kernel"):
        call(operators, monkeypatch, "--apart", "--kernels", "chunkwise", name)


def test_what_ran_out_of_memory_says_so():
    for words in ("CUDA error: out of memory", "DefaultCPUAllocator: can't allocate memory: 9"):
        command = [sys.executable, "-c", f"raise SystemExit({words!r})"]
        assert run_apart(command, seconds=60) == ("", "out of memory")
    assert run_apart(["/nowhere/program"], seconds=1)[1] is not None


def test_an_error_that_is_followed_by_advice_is_what_is_said():
    """As CUDA's are."""
    program = "raise RuntimeError('CUDA error: an illegal access\\nCompile with a flag.\\n')"
    _, failure = run_apart([sys.executable, "-c", program], seconds=60)
    assert failure == "RuntimeError: CUDA error: an illegal access"


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    for name, package in peers.PACKAGES.items():
        reason = peers.unavailable(name, torch.device("cuda"), torch.float32)
        assert f"{package} is not installed" in reason


def test_the_ratios_to_the_peer_are_summed_up():
    rows = [
        {
            "kernel": "chunkwise",
            "dtype": "float32",
            "times_fast_transformers_forward": forward,
            "times_fast_transformers_backward": 3.0,
        }
        for forward in (1.0, 4.0)
    ]
    (row,) = operators.summary(rows)["rows"]
    assert row == {
        "times_as_fast_as": "fast-transformers", "dtype": "float32", "kernel": "chunkwise",
        "cases": 2,
        "forward_least": 1.0, "forward_most": 4.0, "forward_mean": 2.0,
        "backward_least": 3.0, "backward_most": 3.0, "backward_mean": 3.0,
    }  # fmt: skip


def test_the_ratios_to_rivals_are_those_of_the_best_number_of_threads():
    rows = [
        {"length": 8, "batch": 2, "threads": threads, "method": method, "ms_per_step": ms}
        for threads, method, ms in [
            (1, "compiled", 2.0), (2, "compiled", 3.0),
            (1, "recurrent", 9.0), (2, "recurrent", 5.0),
            (1, "fast-transformers", 12.0), (2, "fast-transformers", 10.0),
        ]
    ]  # fmt: skip
    (row,) = sampling.summary(rows)["rows"]
    assert row == {
        "times_as_fast_as": "fast-transformers", "batch": 2, "length": 8, "compiled": 5.0,
        "recurrent": 2.0,
    }  # fmt: skip


def test_finished_runs_are_collected_and_reported(results, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "runs/tiny"
    train = (*QUICK, f"paths.runs={tmp_path}/runs", "run_id=tiny", "seed=5")
    run("train", *train)
    monkeypatch.setattr(sys, "argv", ["train.py", *train])
    for path in folder.glob("provenance*"):
        path.unlink()
    written = json.loads(write_provenance(folder, provenance()).read_text())
    call(collect, monkeypatch, "digits", str(folder))
    measurement = json.loads((results / "digits.json").read_text())
    (row,) = measurement["rows"]
    assert (row["attention"], row["layers"], row["histogram"]) == ("DeltaNet", 2, 2.408)
    (source,) = measurement["sources"]
    assert (source["run"], source["seed"], source["starts"]) == ("tiny", 5, [written])
    assert measurement["seeds"] == [5]
    assert measurement["seconds"] == source["seconds"] > 0
    curve = source["curves"]["val/bits_per_dim"]
    assert min(curve["value"]) == row["val_bits_per_dim"]
    assert len(curve["step"]) == len(curve["value"]) >= 1
    assert source["curves"]["train/bits_per_dim"]["step"] == [0]
    assert str(tmp_path) not in (results / "digits.json").read_text()
    call(report, monkeypatch)
    page = (tmp_path / "RESULTS.md").read_text()
    assert "| attention | layers |" in page
    assert f"| {' | '.join(str(rounded(value)) for value in row.values())} |" in page
    assert f"    {written['command']}\n" in page
    if written["commit"] is not None:
        assert f"commit {written['commit'][:7]}" in page
        assert "lacks" not in page
    call(collect, monkeypatch, "digits", "--named", f"{tmp_path}/runs/tiny")
    (named,) = json.loads((results / "digits.json").read_text())["rows"]
    assert named == {"run": "tiny", **row}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A run of one step."""
    runs = tmp_path_factory.mktemp("runs")
    run("train", *QUICK, "optimizer=radam", f"paths.runs={runs}", "run_id=tiny", "test=false")
    return runs / "tiny"


def test_a_run_that_did_not_say_how_it_came_about_is_not_reported(
    tiny, results, tmp_path, monkeypatch
):
    folder = shutil.copytree(tiny, tmp_path / "tiny")
    for path in folder.glob("provenance*"):
        path.unlink()
    call(collect, monkeypatch, "tiny", str(folder))
    with pytest.raises(SystemExit, match=r"tiny\.json lacks: command of a run, commit of a run"):
        call(report, monkeypatch)
    assert not (tmp_path / "RESULTS.md").exists()


def test_how_long_it_took_the_last_time_is_told(results, monkeypatch, capsys):
    about = {"device": "cpu", "seeds": [0]}
    record.Measurement("speed", "Speed", **about).save([{"ms": 1.0}], seconds=754.6)
    assert capsys.readouterr().out == ""
    record.Measurement("speed", "Speed", **about)
    assert capsys.readouterr().out == "the last time this took 0:12:35\n"
    before = command()
    monkeypatch.setattr("sys.argv", [*sys.argv, "--more"])
    record.Measurement("speed", "Speed", **about)
    assert capsys.readouterr().out == f"the last time this took 0:12:35, by: {before}\n"
    record.Measurement("startup", "Starting", **about)  # here never, but by the project
    assert capsys.readouterr().out.startswith("the last time this took 0:0")


@pytest.mark.parametrize(
    "lost", [*record.NEEDS, *(f"{name} of a run" for name in record.RUN_NEEDS)]
)
def test_a_measurement_that_does_not_say_how_it_came_about_is_not_reported(
    lost, results, monkeypatch
):
    measurement = record.Measurement("speed", "Speed", device="cpu", seeds=[0])
    origin = {"run": "a", **measurement.about}
    measurement.save([{"ms": 1.0}], sources=[origin])
    call(report, monkeypatch)
    name, _, of_run = lost.partition(" of ")
    content = json.loads(measurement.path.read_text())
    whose = content["sources"][0] if of_run else content
    del next(part for part in (whose, whose["machine"]) if name in part)[name]
    measurement.path.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=rf"speed\.json lacks: {lost.replace('_gb', '')}"):
        call(report, monkeypatch)


def test_a_picture_is_with_the_measurement_whose_name_it_has(results):
    results.mkdir()
    for name in ("a.png", "a-curves.png", "ab-curves.png", "ab.json"):
        (results / name).touch()
    assert [path.name for path in report.pictures("a.json")] == ["a-curves.png", "a.png"]


def test_goals_are_empty_until_they_are_measured(results, tmp_path, monkeypatch):
    results.mkdir()
    call(report, monkeypatch)
    page = (tmp_path / "RESULTS.md").read_text()
    assert page.count("| not measured yet |") == len(goals.GOALS) == 10
    measured = {"kernel": "triton", "dtype": "bfloat16", "share_of_copy": 0.5}
    measured |= {"forward_ms": 1.0, "backward_ms": 2.0}
    rows = [{**measured, "batch": 16, "length": 784}, {**measured, "batch": 1, "length": 2**20}]
    rows.append({"kernel": "triton", "dtype": "bfloat16", "length": 4096, "error": "fell"})
    for length, fla, sdpa in ((512, 0.9, 0.5), (1024, 2.5, 1.1)):
        ratios = {"times_fla_forward": fla, "times_fla_backward": fla}
        ratios |= {"times_sdpa_forward": sdpa, "times_sdpa_backward": 9.0}
        rows.append({**measured, "batch": 2**16 // length, "length": length, **ratios})
    (results / "operators-cuda.json").write_text(json.dumps({"rows": rows}))
    metrics = [{"perf/seconds_per_epoch": seconds} for seconds in (40.0, 12.0)]
    (results / "on-gpu-mnist-metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)))
    found = {row["what"]: (row["measured"], row["reached"]) for row in goals.table()}
    assert found["times flash-linear-attention, mean"] == ("1.5", "yes")
    assert found["times flash-linear-attention, least"] == ("0.9", "no")
    assert found["times FlashAttention from 1024 positions on, least"] == ("1.1", "yes")
    # Of 3 ms and half of a copy's speed: a third of the bytes in 1 ms, the rest in 2.
    assert found["16 x 784, share of a copy's bandwidth, either way"] == ("0.5", "yes")
    assert found["4 x 3072, share of a copy's bandwidth, either way"] == ("not measured yet", "")
    assert found["2^20 positions forward and backward, ms"] == ("3", "yes")
    assert found["MNIST, seconds an epoch"] == ("12", "yes")


def test_a_curve_is_thinned_and_keeps_its_ends():
    records = [{"step": step, "train/loss": 1 / (step + 1), "lr": 1} for step in range(0, 1000, 10)]
    records += [{"step": 999, "val/loss": 0.5}, {"step": 999, "val/loss": 0.25}]
    curves = collect.curves(records)
    assert curves["val/loss"] == {"step": [999], "value": [0.25]}
    steps, values = curves["train/loss"]["step"], curves["train/loss"]["value"]
    assert (len(steps), steps[0], steps[-1]) == (30, 0, 990)
    assert values == [round(1 / (step + 1), 4) for step in steps]
    assert steps == sorted(set(steps))
    assert curves.keys() == {"val/loss", "train/loss"}


def test_lists_of_plain_values_are_on_one_line_and_nothing_else_changes():
    value = {"a": [1, 2.5, None], "b": [{"c": ["x, [1]\n 2", "y"]}], "d": [], "e": [[1], [2]]}
    text = record.to_json(value)
    assert json.loads(text) == value
    assert '"a": [1, 2.5, null]' in text
    assert "[1],\n" in text


def test_the_cost_of_rounded_weights_is_measured(tiny, results, monkeypatch):
    call(precision, monkeypatch, "tiny", "tiny", f"--runs={tiny.parent}", "--images=6")
    measurement = json.loads((results / "precision.json").read_text())
    rows = measurement["rows"]
    assert [source["run"] for source in measurement["sources"]] == ["tiny"]
    assert len(measurement["seeds"]) == 1
    assert rows[:3] == rows[3:]
    assert [(row["precision"], row["images"]) for row in rows[:3]] == [
        ("float32", 6), ("bfloat16", 6), ("int8", 6)
    ]  # fmt: skip
    trained = load(tiny / "checkpoints/best.ckpt", device="cpu")
    values = to_sequences(trained.data().splits.test[:6]).long()
    known = torch.zeros(values.shape[1], dtype=torch.bool)
    bits, _ = bits_per_dim(trained.task.model, trained.task.distribution, values, known)
    assert rows[0]["test_bits_per_dim"] == pytest.approx(fmean(bits), abs=2e-5)
    assert rows[0]["cost"] == 0
    assert all(0 < abs(row["cost"]) < 0.1 for row in rows[1:3])


def test_a_folder_that_is_no_run_is_refused_in_one_line(results, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"^error: \S*/nothing has no config.yaml\. Name .*$"):
        call(collect, monkeypatch, "digits", f"{tmp_path}/nothing")
    assert not results.exists()


def test_a_multirun_is_collected_as_its_table(results, tmp_path, monkeypatch, capsys):
    run("train", "-m", *QUICK, f"paths.runs={tmp_path}/runs", "seed=1,2")
    (folder,) = (tmp_path / "runs/sweeps").iterdir()
    words = ("--title=Two seeds", "--note=Both alike.")
    call(collect, monkeypatch, "two", str(folder), *words)
    measurement = json.loads((results / "two.json").read_text())
    assert (measurement["title"], measurement["note"]) == ("Two seeds", "Both alike.")
    assert [row["seed"] for row in measurement["rows"]] == ["1", "2"]
    assert [source["seed"] for source in measurement["sources"]] == measurement["seeds"] == [1, 2]
    assert {"test_bits_per_dim", "tokens_per_second", "state_bytes_at_3072"} <= set(
        measurement["rows"][0]
    )


def test_every_point_of_the_scaling_figure_has_a_process_of_its_own(results, monkeypatch, capsys):
    """One that cannot be computed ends its own curve and nothing else."""
    models = {"linear": ["model=linear"], "none": ["model=nothing"], "softmax": ["model=softmax"]}
    monkeypatch.setattr(scaling, "MODELS", models)
    call(
        scaling, monkeypatch, "--models", "linear", "none", "softmax", "--min-exponent=12",
        "--max-exponent=12", "--linear-max-exponent=13", "--tokens=8192", "--heads=4",
        "--head-dim=16", "--seconds=0.01", "--device=cpu",
    )  # fmt: skip
    rows = json.loads((results / "scaling-cpu.json").read_text())["rows"]
    done = [(row["model"], row["length"]) for row in rows if "failed" not in row]
    assert done == [("linear", 2**12), ("linear", 2**13), ("softmax", 2**12)]
    assert all(row["milliseconds"] > 0 for row in rows if "failed" not in row)
    assert all(row["megabytes"] > 0 for row in rows if "failed" not in row)
    (failed,) = [row for row in rows if "failed" in row]
    assert failed["model"] == "none"
    for what in ("milliseconds", "megabytes"):
        assert (results / f"scaling-cpu-{what}.png").stat().st_size > 5000
    call(
        scaling, monkeypatch, "--models", "linear", "--min-exponent=13", "--tokens=8192",
        "--linear-max-exponent=13", "--heads=4", "--head-dim=16", "--seconds=0.01", "--device=cpu",
    )  # fmt: skip
    measurement = json.loads((results / "scaling-cpu.json").read_text())
    again = measurement["rows"]
    (earlier,) = measurement["sources"]  # what was kept was measured by another command
    assert "--max-exponent=12" in earlier["command"]
    assert "--max-exponent=12" not in measurement["command"]
    assert [row for row in again if row["model"] != "linear"] == [
        row for row in rows if row["model"] != "linear"
    ]
    assert [row["length"] for row in again if row["model"] == "linear"] == [2**13]


def test_each_point_of_the_scaling_figure_is_saved_beside_the_earlier_ones(results, monkeypatch):
    """Those of models that are still to come, too; not those of models that are no more."""
    path, saved = results / "scaling-cpu.json", []

    def point(model, length, options):
        rows = json.loads(path.read_text())["rows"] if path.is_file() else []
        saved.append([(row["model"], row["length"]) for row in rows])
        return {
            "model": model, "length": length, "milliseconds": 1.0, "megabytes": 1.0,
            "kept_bytes_a_token": 1,
        }  # fmt: skip

    monkeypatch.setattr(scaling, "in_process_of_its_own", point)
    sizes = ("--min-exponent=9", "--max-exponent=9", "--linear-max-exponent=10", "--device=cpu")
    monkeypatch.setattr(scaling, "MODELS", {"gone": [], "softmax": [], "linear": []})
    call(scaling, monkeypatch, *sizes)
    assert saved.pop(0) == []
    assert saved.pop() == [("gone", 512), ("softmax", 512), ("linear", 512)]
    saved.clear()
    monkeypatch.setattr(scaling, "MODELS", {"linear": [], "softmax": []})
    call(scaling, monkeypatch, *sizes)
    assert saved[1:] == [
        [("linear", 512), ("softmax", 512)],
        [("linear", 512), ("linear", 1024), ("softmax", 512)],
    ]
    assert "sources" not in json.loads(path.read_text())  # nothing is left of the first call
    saved.clear()
    call(scaling, monkeypatch, *sizes, "--models=softmax", "--heads=4")
    rows = json.loads(path.read_text())["rows"]
    assert [(row["model"], row["length"]) for row in rows] == [("softmax", 512)]  # of one size


def test_memory_is_that_of_the_device_that_was_asked_for(monkeypatch):
    peaks = {"cuda:0": 1, "cuda:1": 2}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device="cuda:0": peaks[device])
    assert scaling.memory("cuda:1") == 2


def test_the_exponent_of_a_power_is_found():
    rows = [
        {"model": "a", "length": n, "milliseconds": 3e-6 * n**2, "megabytes": 1e-3 * n,
         "kept_bytes_a_token": 32}
        for n in (2**12, 2**13, 2**15)
    ]  # fmt: skip
    assert scaling.fitted(rows)["a"] == pytest.approx({"milliseconds": 2, "megabytes": 1})
    (row,) = scaling.summary(rows, 2**15)["rows"]
    assert row == {
        "model": "a", "milliseconds_exponent": 2.0, "megabytes_exponent": 1.0,
        "kept_bytes_a_token": 32,
    }  # fmt: skip


def test_the_length_from_which_a_model_is_faster_is_found():
    def points(*times):
        return [{"length": 2**i, "milliseconds": time} for i, time in enumerate(times)]

    softmax = points(1, 4, 16, 64)
    assert scaling.faster_from(points(3, 6, 12, 24, 48), softmax) == 4
    assert scaling.faster_from(points(0.5, 5, 12, 24), softmax) == 4
    assert scaling.faster_from(points(9, 9, 9, 99), softmax) is None


def test_what_the_forward_pass_keeps_is_counted():
    """Of linear attention the inputs, the outputs, and one number a head."""
    options = argparse.Namespace(heads=2, head_dim=16, device="cpu")
    attention = scaling.build("linear", 64, options)
    if attention.kernel_on(torch.device("cpu")) != "cpp":
        pytest.skip("there is no compiler")
    assert scaling.kept_bytes(attention, 64, options) == 64 * 2 * 4 * (4 * 16 + 1)


def test_a_step_is_measured_by_its_position(results, monkeypatch, capsys):
    call(
        positions, monkeypatch, "--length=40", "--batch=2", "--layers=1", "--heads=2",
        "--model-dim=16", "--positions=3", "--steps=1", "--rounds=1", "--threads=1", "--device=cpu",
        "--methods", "recurrent", "softmax, cached",
    )  # fmt: skip
    rows = json.loads((results / "positions-cpu.json").read_text())["rows"]
    assert [row["position"] for row in rows] == [6, 20, 33]
    assert all(row["recurrent"] > 0 and row["softmax, cached"] > 0 for row in rows)
    assert (results / "positions-cpu.png").stat().st_size > 5000


def test_a_step_is_measured_by_its_position_in_one_case_at_a_time(results, monkeypatch, capsys):
    with pytest.raises(SystemExit, match=r"--length was given \[9, 20\]. Give one number."):
        call(positions, monkeypatch, "--length", "9", "20", "--device=cpu")
