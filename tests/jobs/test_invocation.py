"""What the words of a command line come to, before Hydra is given them."""

import pytest

from linear_transformers.config.folder import Configurations
from linear_transformers.flags import CommandLine
from linear_transformers.jobs.invocation import Invocation
from tests.conftest import PROJECT

CONF = Configurations.of("train")


def called(*words: str) -> Invocation:
    return Invocation.of(CONF, CommandLine.of(words), PROJECT)


def test_hydra_gets_its_flags_first_and_never_what_is_allowed():
    call = called("seed=1", "allow=[tests]", "--cfg", "job", "model.dropout=0.1")
    assert call.words == ["--cfg=job", "seed=1", "++model.dropout=0.1"]
    assert call.allowed == ["tests"]
    assert call.multirun is None
    assert call.found == []


def test_a_multirun_has_a_folder_and_counts_its_jobs(tmp_path):
    runs = f"paths.runs={tmp_path}"
    call = called("-m", "experiment=copy/small", "seed=1,2", "sweep.skip_done=false", runs)
    assert call.multirun is not None
    assert call.multirun.num_jobs == 6  # three models are the experiment's
    assert not call.multirun.searches
    folder = call.multirun.sweep.folder
    assert folder.parent == tmp_path / "sweeps"
    assert call.words[:2] == ["--multirun", f"hydra.sweep.dir={folder}"]
    typed = ["-m", "experiment=copy/small", "seed=1,2", runs]  # as multiruns of before have it
    assert (folder / "command").read_text() == repr(typed)


def test_joblib_starts_as_many_processes_as_there_are_jobs_or_cores(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    call = called("-m", "hydra/launcher=joblib", "seed=1", f"paths.runs={tmp_path}")
    assert "hydra.launcher.n_jobs=1" in call.words


def test_a_search_is_known_by_the_sweeper_that_is_composed(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    for sweeper, searches in (("search", True), ("basic", False)):
        call = called("-m", f"hydra/sweeper={sweeper}", "seed=1,2", f"paths.runs={tmp_path}")
        assert call.multirun is not None
        assert call.multirun.searches is searches


def test_a_job_of_a_multirun_is_told_as_it_would_be_typed_alone():
    call = Invocation([], ["~model", "+model={a:1}"], ["allow=[tests]"], ["tests"], None)
    known = ["~model=null", "+model={a:1}", "++model.dropout=0.1", "sweep.skip_done=true", "seed=2"]
    assert call.typed(known) == ["model.dropout=0.1", "seed=2", "allow=[tests]"]
