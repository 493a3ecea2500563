"""The benchmark of decoding goes on from what the model has read and written."""

import argparse
import json
import sys

import pytest
import torch

from benchmarks import decoding, record
from linear_transformers.data.text import START
from linear_transformers.testing import tensors

SIZES = argparse.Namespace(layers=2, heads=2, model_dim=16)
LENGTH = 9


@pytest.mark.parametrize("method", decoding.METHODS)
def test_the_state_is_that_of_a_model_that_has_read_and_written(method):
    model = decoding.model_of(method, SIZES).double()
    state = decoding.state_after(LENGTH, model)
    source, target = torch.randint(
        decoding.NUM_TOKENS, (2, 1, LENGTH), generator=torch.Generator().manual_seed(decoding.SEED)
    )
    scores, _ = model.step(torch.tensor([START]), state)
    whole = model(torch.cat([target, torch.tensor([[START]])], dim=1), source)
    torch.testing.assert_close(scores, whole[:, -1])


def test_rows_have_rates_and_states_beside_softmax(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    arguments = ["--length", "8", "20", "--batch", "1", "3", "--threads", "1", "--rounds", "1"]
    arguments += ["--steps", "2", "--layers", "1", "--heads", "2", "--model-dim", "16"]
    monkeypatch.setattr(sys, "argv", ["decoding", *arguments])
    decoding.main()
    rows = json.loads((tmp_path / "decoding-cpu.json").read_text())["rows"]
    cases = [(row["length"], row["batch"], row["method"]) for row in rows]
    assert cases == [(n, b, m) for n in (8, 20) for b in (1, 3) for m in decoding.METHODS]
    for row in rows:
        rate = 1000 * row["batch"] / row["ms_per_step"]
        assert row["tokens_per_second"] == pytest.approx(rate, rel=0.05)
    bytes_of = {(row["method"], row["length"]): row["state_bytes"] for row in rows}
    assert bytes_of["linear", 8] == bytes_of["linear", 20]
    assert bytes_of["softmax", 20] == 2.5 * bytes_of["softmax", 8]
    options = argparse.Namespace(layers=1, heads=2, model_dim=16)
    state = decoding.state_after(20, decoding.model_of("linear_conv", options))
    held = sum(x.nbytes for x in tensors(state))
    assert bytes_of["linear_conv", 20] == held
