"""The costs of an ablation's variants."""

import json
import sys

import pytest

from benchmarks import costs, plans, record
from tests.conftest import TINY


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measure variants of a plan, in small."""

    def measured(name: str, *variants: str) -> list[dict]:
        monkeypatch.setattr(record, "RESULTS", tmp_path)
        words = [name, "--variants", *variants, "--rounds=1", "--batch=2", "--overrides", *TINY]
        monkeypatch.setattr(sys, "argv", ["costs", *words])
        costs.main()
        return json.loads((tmp_path / f"costs-{name}.json").read_text())["rows"]

    return measured


def test_costs_are_of_the_models_that_the_plan_trains(measured):
    variants = {"linear": (), "other": ("model/feature_map=dpfp",)}
    plan = plans.PLANS["digits"]._replace(arguments=("model=linear",), variants=variants)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plans.PLANS, "digits", plan)
        first, second = measured("digits", "linear", "other")
    assert (first["stepper"], second["stepper"]) == ("compiled", "recurrent")
    assert first["state_bytes"] == 2 * 2 * 8 * (8 + 1) * 4  # layers, heads, C (D + 1), float32
    assert second["state_bytes"] == 2 * 2 * 16 * (8 + 1) * 4
    assert second["sequences_per_second"] == second["in_pytorch"]
    for row in (first, second):
        assert min(row["ms_per_training_step"], row["without_a_cache"]) > 0


@pytest.fixture
def spoken(measured, monkeypatch, tmp_path):
    """Measure a model of speech, of few sentences."""

    def spoken() -> dict:
        small = ("data.num_train=4", "data.num_val=2", "data.num_test=2", f"paths.data={tmp_path}")
        plan = plans.PLANS["espeak-models"]
        plan = plan._replace(arguments=(*plan.arguments, *small))
        monkeypatch.setitem(plans.PLANS, "espeak-models", plan)
        (row,) = measured("espeak-models", "linear")
        return row

    return spoken


def test_models_of_speech_have_no_rate_of_sampling(spoken):
    row = spoken()
    assert [*row] == ["variant", "parameters", "ms_per_training_step", "seconds_per_epoch"]


def test_a_step_of_batches_that_differ_is_the_mean_of_an_epoch(spoken, monkeypatch):
    """The first batch of speech may be a fraction of the others."""
    monkeypatch.setattr(costs, "training_milliseconds", lambda *_: {"linear": [10.0, 40.0, 250.0]})
    row = spoken()
    assert (row["ms_per_training_step"], row["seconds_per_epoch"]) == (100, 0.3)
