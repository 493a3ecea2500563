"""What a user reads: help at once, and one line for whatever can be mended."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError

import pytest

from linear_transformers.config.folder import Configurations
from linear_transformers.flags import CommandLine
from linear_transformers.jobs.composition import register_project, values_of, with_names
from linear_transformers.jobs.named import runs_of, use_of
from tests import programs
from tests.conftest import CONF, PROJECT


@pytest.fixture
def complaint(tmp_path):
    """The one line that a command ends with, given that it fails and leaves nothing behind."""

    def of(program: str, *arguments: str) -> str:
        message = programs.complaint(program, f"paths.runs={tmp_path}/runs", *arguments)
        assert not list(tmp_path.glob("runs/*"))
        return message

    return of


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("model=linaer", ("model=linaer", "Did you mean linear?")),
        (
            "data=qqq",
            ("data=qqq", "digits, espeak, folder, librispeech, manifest"),
        ),
        ("modl=linear", ("modl", "Did you mean model?")),
        ("sed=1", ("sed", "Did you mean seed?")),
        ("model.num_layer=3", ("model.num_layer", "Did you mean num_layers?")),
        ("trainer.max_epoch=3", ("trainer.max_epoch", "Did you mean max_epochs?")),
        ("experimnt=x", ("experimnt", "Did you mean experiment?")),
        ("trainer.epochs=3", ("Did you mean max_epochs or min_epochs?",)),
        ("--model=linear", ("options have no dashes", "model=VALUE")),
        ("--optimizer.lr=3", ("options have no dashes", "optimizer.lr=VALUE")),
        ("--lr", ("options have no dashes", "Did you mean optimizer.lr?")),
        ("-x", ("-x: options have no dashes",)),
        ("-lr=3", ("options have no dashes", "Did you mean optimizer.lr?")),
        ("--cfg=jobs", ("--cfg", "'jobs'", "job", "--help")),
        ("--config", ("--config could match --config-path, --config-name, --config-dir",)),
        ("--config-dir", ("expected one argument",)),
        ("--batch-size=3", ("options have no dashes", "Did you mean data.batch_size?")),
        ("epochs=5", ("Did you mean trainer.max_epochs?",)),
        (
            "data.path=we=ird.txt",
            ("'data.path=we=ird.txt' is not KEY=VALUE", "quotes", "'data.path=\"we=ird.txt\"'"),
        ),
        ("optimizer.lr=#", ("'optimizer.lr=#' is not KEY=VALUE",)),
        ("lr=0.1", ("lr is not a key", "Did you mean optimizer.lr?")),
        ("optimizer.learning_rate=3", ("Did you mean lr?",)),
        ("optimizer.wd=3", ("Did you mean weight_decay?",)),
        ("learning_rate=3", ("Did you mean optimizer.lr?",)),
        ("wd=0.1", ("Did you mean optimizer.weight_decay?",)),
        ("num_heads=4", ("Did you mean model.num_heads?",)),
        ("ema=true", ("Did you mean callbacks=ema?",)),
        ("ema.decay=0.9", ("Did you mean callbacks.ema?",)),
        ("batch_size=2", ("Did you mean data.batch_size?",)),
        ("num_layers=2", ("Did you mean model.num_layers?",)),
        ("inputs=[a]", ("inputs is not a key",)),
        ("experiment=paper", ("is a folder", "paper/cifar10, paper/copy, paper/mnist")),
        ("experiment=paper/mnst", ("paper/mnst", "Did you mean paper/mnist?")),
        ("model/featuremap=elu", ("Did you mean model/feature_map?",)),
        ("optimzer.lr=1", ("optimzer is not", "Did you mean optimizer?")),
        ("callbacks.bset.monitor=x", ("callbacks.bset is not", "Did you mean best?")),
        ("task.distribution.num_component=3", ("Did you mean num_components?",)),
        ("scheduler.warmpu=0.1", ("Did you mean warmup?",)),
        ("data.batchsize=3", ("Did you mean batch_size?",)),
        ("paths.run=x", ("Did you mean runs?",)),
        ("logger=wandbb", ("logger=wandbb", "Did you mean wandb?")),
        ("+callbacks.foo=3", ("callbacks.foo names no class",)),
        ("+logger.foo.x=1", ("logger.foo names no class",)),
        ("~model", ("model has no value",)),
        ("model=linear ~model/feature_map", ("model.mixer.attention.feature_map has no value",)),
        ("just_a_word", ("'just_a_word' is not KEY=VALUE",)),
        ("seed=-1", ("seed=-1", "at least 0")),
        ("matmul_precision=low", ("matmul_precision='low'", "highest")),
        ("optimizer.lr=-1", ("optimizer", "-1")),
        ("model.dropout=2", ("model.dropout=2", "below 1")),
        ("model.model_dim=0", ("model_dim=0", "at least 1")),
        ("model.feedforward_dim=0", ("feedforward_dim=0", "at least 1")),
        ("model=linear model.attention.eps=0.1", ("Did you mean model.mixer.attention?",)),
        ("model=linear model.mixer.attention.eps=-1", ("eps=-1", "at least 0")),
        ("trainer=gpu", ("trainer.accelerator=gpu", "sees no GPU here", "trainer=cpu")),
        ("trainer.devices=0", ("Trainer", "devices=0")),
        ("trainer.accelerator=abacus", ("trainer", "abacus")),
        ("trainer=cpu trainer.precision=16-mixed", ("precision=16-mixed", "GPU", "bf16-mixed")),
        ("trainer=cpu trainer.precision=16", ("precision=16", "GPU", "bf16-mixed")),
        ("trainer.precision=half", ("trainer.precision='half'", "bf16-mixed")),
        ("trainer.limit_val_batches=few", ("trainer.limit_val_batches", "'few'")),
        ("trainer.limit_test_batches=0", ("limit_test_batches=0", "test=false")),
        ("data.batch_size=5000", ("1437 training images", "data.batch_size=1437")),
        ("data.num_train=0", ("num_train=0",)),
        ("+model.layers=3", ("model.layers", "num_layers")),
        ("model.num_layers=many", ("model.num_layers='many'", "integer")),
        ("seed=x", ("seed='x'", "integer")),
        ("optimizer.lr=fast", ("optimizer.lr='fast'", "number")),
        ("tags=x", ("tags",)),
        ("data=arrays", ("data.path has no value",)),
        ("model._target_=os.system", ("os.system", "there is no such class")),
        ("model.num_heads=3", ("model_dim=64", "num_heads=3", "63")),
        ("model.norm=both", ("norm=both", "post", "pre")),
        ("model=linear model.mixer.attention.kernel=fast", ("kernel=fast", "chunkwise", "triton")),
        ("data.batch_size=0", ("batch_size=0",)),
        ("run_id=../x", ("run_id=../x", "plain name")),
        ("resume=nowhere", ("nowhere", "neither a run nor a checkpoint")),
        ("trainer.val_check_interval=0", ("val_check_interval=0", "at least 1")),
        ("trainer.devices=100000", ("trainer.devices=100000", "at most 1024")),
        ("trainer.devices=1024", ("1437 training images", "1024 devices")),
        ("sweep.skip_done=true", ("add -m",)),
        ("model=../../secret", ("secret",)),
        ("allow=", ("allow=", "names no packages")),
        ("allow=[no_such_package]", ("no_such_package is installed", "--with-editable")),
        ("allow=[/etc]", ("allow=[/etc]", "names no packages")),
        ("model._target_=nobody.Model", ("nobody.Model", "no package nobody is installed")),
        ("model.max_length=3", ("model.max_length", "set by the program")),
        ("trainer.logger=false", ("trainer.logger", "set by the program")),
        ("scheduler.total_steps=4", ("scheduler", "total_steps")),
        ("scheduler.warmup=2", ("warmup=2", "below 1")),
        ("trainer.max_epochs=-1", ("scheduler=warmup_cosine", "known length", "max_steps")),
        ("model=linear model.mixer.attention.eps=nan", ("model.mixer.attention.eps=nan", "finite")),
        ("proposed.transformer.layers=3", ("proposed.transformer.layers", "num_layers")),
        (
            "model=linear model.mixer.attention._target_=linear_transformers.data.Digits",
            ("makes no CausalAttention", "Digits"),
        ),
        ("model._target_=linear_transformers.models.Nothing", ("there is no such class",)),
        ("model._target_=linear_transformers.runs.folder.Path", ("there is no such class",)),
    ],
)
def test_a_wrong_argument_gets_one_line(complaint, argument, words):
    message = complaint("train", *argument.split())
    assert all(word in message for word in words), message


def test_a_kernel_that_cannot_run_here_gets_one_line(complaint, no_triton_on_cpus):
    message = complaint(
        "train", "model=linear", "model.mixer.attention.kernel=triton", "trainer=cpu"
    )
    assert "kernel=triton cannot run: it is made for GPUs" in message
    assert "kernel=auto" in message


def test_a_feature_map_for_a_model_that_has_none_is_refused(complaint):
    message = complaint("train", "model=softmax", "model/feature_map=relu")
    assert "model/feature_map is not part of this configuration" in message
    assert "choose another model." in message


def test_a_missing_data_set_is_named_and_leaves_the_runs_name_free(
    complaint, tmp_path, monkeypatch
):
    def no_network(*args, **kwargs):
        raise URLError("no route to host")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    message = complaint("train", "data=mnist", f"data.root={tmp_path}/empty", "run_id=mine")
    assert "MNIST" in message
    assert "data.root=DIR" in message


def test_testing_without_a_checkpoint_is_refused(complaint):
    assert "resume=RUN_OR_FILE" in complaint("train", "train=false")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("n=1", ("ckpt has no value", "ckpt=")),
        ("ckpt=nowhere", ("nowhere", "neither a run nor a checkpoint")),
        ("ckpt=README.md", ("README.md", "not a checkpoint")),
        ("nn=1", ("nn", "Did you mean n?")),
    ],
)
def test_a_wrong_argument_of_sample_gets_one_line(complaint, argument, words, monkeypatch):
    monkeypatch.chdir(PROJECT)
    given = () if argument.startswith(("ckpt", "n=1")) else ("ckpt=README.md",)
    message = complaint("sample", *given, argument)
    assert all(word in message for word in words), message


def test_a_run_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = programs.complaint("train", f"paths.runs={tmp_path}/file/runs")
    assert re.search(r"cannot be written .*paths\.runs=DIR", message)


@pytest.mark.parametrize("word", ["experiment=mine", "num_layers=2"])
def test_a_damaged_yaml_of_ones_own_is_named(complaint, tmp_path, word):
    """Whether Hydra reads it, or the search for where a key stands."""
    for group in ("experiment", "model"):
        (tmp_path / group).mkdir()
        (tmp_path / f"{group}/mine.yaml").write_text("# @package _global_\ntrainer: {a: [\n")
    message = complaint("train", "--config-dir", str(tmp_path), word)
    assert 'mine.yaml", line 3' in message


def test_a_traceback_is_shown_when_asked_for(tmp_path):
    outcome = subprocess.run(
        [sys.executable, "train.py", "model=linaer"],
        cwd=PROJECT, env={"HYDRA_FULL_ERROR": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert outcome.returncode == 1
    assert "Traceback" in outcome.stderr


@pytest.mark.parametrize("program", ["train.py", "sample.py"])
def test_help_loads_no_torch_and_lists_the_choices(program):
    code = (
        f"import sys, runpy; sys.argv = ['{program}', '--help'];"
        f"runpy.run_path('{program}', run_name='__main__');"
        "print('torch' in sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    *help_lines, loaded = outcome.stdout.splitlines()
    assert loaded == "False"
    assert any(f"uv run {program}" in line for line in help_lines[:4])
    assert max(map(len, help_lines)) <= 100
    if program == "train.py":
        rows = "\n".join(help_lines).replace("\n" + " " * 23, " ").splitlines()
        choices = {line.split()[0]: line for line in rows if line.startswith("  ")}
        for group in ("model", "model/feature_map", "data", "optimizer", "trainer"):
            for path in (CONF / group).glob("*.yaml"):
                assert path.stem in choices[group]
        assert "paper/mnist" in choices["experiment"]


def test_help_that_is_cut_off_ends_without_a_word():
    """As by `| head -2`."""
    process = subprocess.Popen(
        [sys.executable, "train.py", "--help"],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.close()
    _, said = process.communicate()
    assert (process.returncode, said) == (128 + signal.SIGPIPE, b"")


def test_the_task_of_a_run_is_that_of_its_latest_start(tmp_path):
    """An earlier one may have failed before anything was trained."""
    (tmp_path / "a/checkpoints").mkdir(parents=True)
    (tmp_path / "a/checkpoints/best.ckpt").touch()
    for i, (name, task) in enumerate({"config": "ImageGeneration", "config-2": "Copying"}.items()):
        (tmp_path / f"a/{name}.yaml").write_text(f"task: {{_target_: tasks.{task}}}")
        os.utime(tmp_path / f"a/{name}.yaml", (9 - i, 9 - i))  # as copies may have them
    conf = Configurations((CONF,), "sample")
    assert use_of(conf, ["ckpt=a", f"paths.runs={tmp_path}"], PROJECT) == ["sample=copying"]


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], "project/runs"),
        (["model=softmax,linear", "paths.runs=a"], "a"),
        (["++paths.runs=a"], "a"),
        (["paths.runs=${oc.env:PLACE}/a"], "place/a"),
        (["experiment=mine", "--config-dir", "CONF"], "from a preset"),
        (["experiment=mine", "--config-dir", "CONF", "paths.runs=a"], "a"),
        (["experiment=debug,mine", "--config-dir", "CONF"], "runs"),
    ],
)
def test_the_folder_of_the_runs_is_what_the_configuration_says(
    tmp_path, monkeypatch, words, folder
):
    (tmp_path / "experiment").mkdir()
    preset = "# @package _global_\npaths: {runs: from a preset}\n"
    (tmp_path / "experiment/mine.yaml").write_text(preset)
    monkeypatch.setenv("PLACE", "place")
    words = [word.replace("CONF", str(tmp_path)) for word in words]
    register_project(Path("project"))
    line = CommandLine.of(words)
    conf = Configurations.of("train", line.folder_of_ones_own)
    found = runs_of(conf, line.words, Path("project"))
    assert str(found).endswith(folder)


@pytest.mark.parametrize(
    ("word", "taken", "names"),
    [
        ("run_id=12e4567", "run_id='12e4567'", ["12e4567"]),
        ("run_id=1_000", "run_id='1_000'", ["1_000"]),
        ("run_id=007,1e3,b", "run_id=007,'1e3',b", ["007", "1e3", "b"]),
        ("init_from=true", "init_from='true'", ["true"]),
        ("ckpt=12", "ckpt=12", ["12"]),
        ("resume=auto", "resume=auto", ["auto"]),
        ("resume=null", "resume=null", ["null"]),
        ("run_id='a-${seed}'", "run_id='a-${seed}'", ["a-${seed}"]),
    ],
)
def test_names_are_what_was_typed_and_no_numbers(word, taken, names):
    """Of hexadecimal commits one in fifty is a number to Hydra, and most of those infinity."""
    assert with_names([word]) == [taken]
    assert values_of(word.partition("=")[0], [taken]) == names


REFUSED_EARLY = {
    "train.py data=arrays data.path=gone.npz": "data.path=gone.npz does not exist",
    "train.py data=manifest data.train=gone.jsonl data.test=-": "data.train=gone.jsonl",
    "train.py data=folder data.path=": "data.path is empty. Give it a file or a folder",
    "train.py resume=gone": "gone is neither a run nor a checkpoint file",
    "train.py run_id=a/b": "run_id=a/b is not a plain name",
    "train.py run_id=taken": "run_id=taken exists already",
    "train.py resume=12e4567": "12e4567 is neither a run nor a checkpoint file",
    "sample.py ckpt=gone": "gone is neither a run nor a checkpoint file",
    "sample.py ckpt=taken image=gone.png": "image=gone.png does not exist",
    "transcribe.py ckpt=taken audio=gone.flac": "audio=gone.flac does not exist",
}


def test_what_is_not_there_is_refused_before_torch_is_imported(tmp_path):
    """One process calls them all: what one imported, all later ones would have."""
    (tmp_path / "runs/taken/checkpoints").mkdir(parents=True)
    (tmp_path / "runs/taken/checkpoints/best.ckpt").touch()
    task = "linear_transformers.tasks.ImageGeneration"
    (tmp_path / "runs/taken/config.yaml").write_text(f"task: {{_target_: {task}}}")
    calls = [f"{line} paths.runs={tmp_path}/runs".split() for line in REFUSED_EARLY]
    code = (
        "import sys, runpy\n"
        f"for call in {calls}:\n"
        "    sys.argv = call\n"
        "    try: runpy.run_path(call[0], run_name='__main__')\n"
        "    except SystemExit as end: print(end, 'torch' in sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    for line, words in zip(outcome.stdout.splitlines(), REFUSED_EARLY.values(), strict=True):
        assert line.startswith("error: ")
        assert words in line
        assert line.endswith(" False")


LIGHTNINGS = "lightning.pytorch.callbacks"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resume=auto",), "give run_id=NAME"),
        (("++run_id=12e4567",), "run_id=inf was read as no name"),
        (("train=false", "test=false"), "leaves nothing to do"),
        (("init_from=nowhere",), "neither a run nor a checkpoint"),
        (("resume_optimizer=keep",), "is for a run that is resumed"),
        (("resume_optimizer=some",), "choose one of 'keep', 'new'"),
        (("model=linear,softmax",), "-m runs them one after the other"),
        (("data=digits", "task=copying"), "works on data with a CopyShape"),
        (("data=digits", "task=speech_recognition"), "Leave task out"),
        (("trainer.num_nodes=2", "trainer.strategy=ddp", "trainer.accelerator=cpu"), "srun"),
        (("model.model_dim=1048576", "model.feedforward_dim=1048576"), "Out of memory"),
        (("trainer.accelerator=cpu", "trainer.devices=-1"), "devices"),
        (("paths=0",), ""),
        (("optimizer.betas=[0.9]",), "optimizer.betas=[0.9]: it has too few values."),
        (("optimizer.betas=0.9",), "it must be a list, such as [0.9]."),
        (("trainer.check_val_every_n_epoch=0",), "at least 1"),
        (("seed=4294967296",), "below 4294967296"),
        (("paths.data=3",), "Write ./3 if it is a folder"),
        (("hydra/sweeper=search",), "add -m"),
        (("hydra.sweeper.params.seed=1",), "add -m"),
        (("~callbacks.best", "~callbacks.last"), "none would be kept"),
        (("trainer.fast_dev_run=true",), "use debug=step"),
        ((f"+callbacks.x={{_target_: {LIGHTNINGS}.LearningRateFinder}}",), "by a multirun"),
        (
            (f"+callbacks.x={{_target_: {LIGHTNINGS}.StochasticWeightAveraging, swa_lrs: 0.1}}",),
            "use callbacks=ema",
        ),
        (("trainer.strategy=ddp_spawn",), "use ddp"),
        (("trainer.min_epochs=5", "trainer.max_epochs=2"), "is above"),
        (("trainer.max_epochs=0",), "trainer.max_epochs=0 trains nothing"),
        (("trainer.limit_train_batches=0",), "trainer.limit_train_batches=0 trains nothing"),
        (("scheduler=on_plateau", "trainer.limit_val_batches=0"), "leaves no validation"),
        (("callbacks=early_stopping", "trainer.limit_val_batches=0"), "leaves no validation"),
        (("optimizer.maximize=true",), "optimizer.maximize"),
        (("scheduler=step_down", "scheduler.factor=10"), "at most 1"),
        (("logger.wandb.init_timeout=0",), "above 0"),
        (("-m", "run_id=a", "seed=1,2"), "2 jobs"),
        (("-m", "run_id=a,a"), "names 1 run, and these are 2 jobs"),
        (("-m", "run_id=a,b", "seed=1,2"), "names 2 runs, and these are 4 jobs"),
        (
            ("-m", "hydra/sweeper=search", "hydra.sweeper.storage=sqlite:///no/such/x.db"),
            "there is no folder no/such",
        ),
        (
            ("-m", "hydra/sweeper=search", "hydra.sweeper.storage=search"),
            "storage=sqlite:///search.db",
        ),
        (("-m", "hydra/sweeper=search", "hydra.sweeper.direction=maximize"), "Leave it out"),
        (("~paths.runs",), "paths.runs has no value"),
        (("~paths",), "every program has paths"),
        (("resume=",), "The name of a run or checkpoint file is empty"),
        (("~train",), "train has no value"),
        (("-m", "hydra.sweep.dir="), "hydra.sweep.dir is empty"),
        (("-m", "seed=1,2", "hydra.sweep.dir=/proc/a"), "Give hydra.sweep.dir=DIR"),
        (("model=[softmax,linear]",), "model is one choice"),
        (("model/feature_map=[elu,relu]",), "model/feature_map is one choice"),
        (("model.feature_map=relu",), "Write model/feature_map=relu"),
        (("-m", "data=espeak", "task.encoder=softmax,linear"), "Write task/encoder=softmax,linear"),
        (("hydra.mode=MULTIRUN",), "add -m"),
        (("experiment=null",), "experiment=null names no choice. Leave it out, or"),
        (("logger=null",), "or choose one of mlflow, none"),
        (("+proposed.transformer.depth=2",), "Set model.KEY=VALUE"),
        (("model.feedforward_dim=true",), "true and false are none"),
        (("trainer.max_epochs=true",), "true and false are none"),
        (("trainer.devices=[true]",), "true and false are none"),
        (("data._target_=linear_transformers.data.ImageSource",), "what others inherit from"),
        (("trainer.min_steps=5", "trainer.max_steps=2"), "is above"),
        (("scheduler=on_plateau", "scheduler.monitor="), "at least 1 character"),
        (
            (
                "optimizer=adam",
                "optimizer._target_=torch.optim.SparseAdam",
                "~optimizer.weight_decay",
            ),
            "takes sparse gradients",
        ),
        (("logger.wandb.project=a/b",), "W&B takes none of / "),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_at_once(complaint, words, said):
    assert said in complaint("train", *words)
