"""A workspace of W&B is put together from what a run has logged, without a server."""

import json
import sys

import pytest
import wandb
import wandb_workspaces.workspaces as workspaces

from linear_transformers.tracking import dashboard
from tests.programs import QUICK, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    run("train", *QUICK, f"paths.runs={runs}", "run_id=a", "group=mine", "optimizer=radam")
    return runs / "a"


def test_its_panels_are_of_what_was_logged(folder):
    view = dashboard.workspace(folder, entity="me", project="p", by="model.num_layers")
    found = {section.name: section.panels for section in view.sections}
    assert [*found] == ["Validation", "Test", "Pictures", "Training", "Speed", "Sweep"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = {name for row in rows for name in row}
    curves = [*found["Validation"], *found["Training"], *found["Speed"]]
    assert {"val/bits_per_dim", "train/bits_per_dim", "lr-RAdam"} <= {x.title for x in curves}
    assert {panel.title for panel in curves} <= logged
    for panel in curves:
        assert (panel.groupby_aggfunc, panel.groupby_rangefunc) == ("mean", "stddev")
    assert [panel.title for panel in found["Test"]] == ["test/bits_per_dim"]
    sent = view._to_model().model_dump_json()
    assert "mine" in sent
    assert "num_layers" in sent


def test_its_curves_are_of_each_model_unless_something_else_is_named(folder):
    """By the names of models: `linear`, `linear_conv` and `hybrid` have one attention."""
    sent = dashboard.workspace(folder, entity="me", project="p")._to_model().model_dump_json()
    assert "choices.value.model" in sent


def test_it_is_saved_once(folder, monkeypatch, capsys):
    saved = []
    monkeypatch.setattr(workspaces.Workspace, "save", lambda self: saved.append(self))
    monkeypatch.setattr(workspaces.Workspace, "url", "https://wandb.ai/me/p")
    dashboard.main([str(folder), "--entity", "me"])
    assert [view.entity for view in saved] == ["me"]
    assert capsys.readouterr().out == "https://wandb.ai/me/p\n"
    dashboard.main(["a", "--entity", "me", "--runs", str(folder.parent)])
    assert len(saved) == 2


def test_what_the_server_refuses_is_one_line(folder, monkeypatch):
    def save(self):
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(workspaces.Workspace, "save", save)
    with pytest.raises(SystemExit, match=r"^error: No API key configured\. Use `wandb login`"):
        dashboard.main([str(folder), "--entity", "me"])


def test_what_cannot_be_plotted_is_refused(tmp_path, monkeypatch, raises_one_line, folder):
    (tmp_path / "empty").mkdir()
    with raises_one_line("metrics.jsonl has no records"):
        dashboard.workspace(tmp_path / "empty", entity="me", project="p")
    with pytest.raises(SystemExit, match="has no records"):
        dashboard.main([str(tmp_path / "empty"), "--entity", "me"])
    with pytest.raises(SystemExit, match="none is no run"):
        dashboard.main(["none", "--entity", "me", "--runs", str(tmp_path)])
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    with raises_one_line("needs wandb-workspaces", "dashboards"):
        dashboard.workspace(folder, entity="me", project="p")
