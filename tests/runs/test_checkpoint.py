"""Checkpoints are whole or absent, and data only."""

import os
import pickle

import pytest
import torch

from linear_transformers.runs.checkpoint import FORMAT, MIGRATIONS, file_hash, read_checkpoint
from linear_transformers.training.files import WholeCheckpoints

SHAPE = {"height": 8, "width": 8, "channels": 1, "num_levels": 17}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "last.ckpt"
    WholeCheckpoints().save_checkpoint(content(1.0), path)
    return path


def content(value: float) -> dict:
    return {
        "config": {"model": {}},
        "shape": SHAPE,
        "state_dict": {"w": torch.full((999,), value)},
    }


def test_what_was_saved_is_loaded(path):
    assert read_checkpoint(path)["state_dict"]["w"].unique().item() == 1.0
    assert torch.load(path, weights_only=True)["config"] == {"model": {}}


@pytest.mark.parametrize("failing", ["torch.save", "os.fsync"])
def test_a_failed_save_leaves_the_previous_checkpoint(path, failing, monkeypatch, raises_one_line):
    def disk_full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, disk_full)
    with raises_one_line("last.ckpt", "No space left"):
        WholeCheckpoints().save_checkpoint(content(2.0), path)
    monkeypatch.undo()
    assert read_checkpoint(path)["state_dict"]["w"][0] == 1.0
    assert os.listdir(path.parent) == ["last.ckpt"]  # noqa: PTH208


def test_an_interrupted_save_leaves_the_previous_checkpoint_alone(path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        WholeCheckpoints().save_checkpoint(content(2.0), path)
    assert read_checkpoint(path)["state_dict"]["w"][0] == 1.0
    assert os.listdir(path.parent) == ["last.ckpt"]  # noqa: PTH208


@pytest.mark.parametrize("size", [0, 10, 1000, -1])
def test_a_truncated_checkpoint_is_refused(path, size, raises_one_line):
    path.write_bytes(path.read_bytes()[:size])
    with raises_one_line("last.ckpt", "not a checkpoint"):
        read_checkpoint(path)


def test_a_flipped_bit_is_found(path, raises_one_line):
    data = bytearray(path.read_bytes())
    position = data.index(torch.full((999,), 1.0).numpy().tobytes()) + 2000
    data[position] ^= 1
    path.write_bytes(data)
    with raises_one_line("last.ckpt", "damaged"):
        read_checkpoint(path)


class Malicious:
    def __reduce__(self):
        return (os.system, ("touch executed",))


@pytest.mark.parametrize("save", [torch.save, lambda x, path: path.write_bytes(pickle.dumps(x))])
def test_a_malicious_checkpoint_is_not_executed(tmp_path, save, monkeypatch, raises_one_line):
    monkeypatch.chdir(tmp_path)
    save(content(1.0) | {"extra": Malicious()}, tmp_path / "evil.ckpt")
    with raises_one_line("evil.ckpt") as refused:
        read_checkpoint(tmp_path / "evil.ckpt")
    assert "weights_only" not in str(refused.value)  # torch says how to execute it all the same
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "other",
    [
        {"state_dict": {}},
        [1, 2],
        content(1.0) | {"state_dict": {"w": 1}},
        content(1.0) | {"config": None},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, other, raises_one_line):
    torch.save(other, tmp_path / "other.ckpt")
    with raises_one_line("other.ckpt", "not a checkpoint of this project"):
        read_checkpoint(tmp_path / "other.ckpt")


def test_a_later_format_is_refused(tmp_path, raises_one_line):
    torch.save(content(1.0) | {"format": FORMAT + 1}, tmp_path / "new.ckpt")
    with raises_one_line("new.ckpt", f"format {FORMAT + 1}", "newer version"):
        read_checkpoint(tmp_path / "new.ckpt")


def test_every_format_has_its_migration():
    assert sorted(MIGRATIONS) == list(range(1, FORMAT))


def test_format_2_is_brought_up_to_date(tmp_path):
    """Blocks owned an attention and its projections; an encoder has a projection, too."""
    linear = {"_target_": "linear_transformers.attention.LinearAttention", "eps": 1e-6}
    weights = {
        name: torch.full((1,), float(i))
        for i, name in enumerate(
            ("project_in.weight", "stack.blocks.0.attention.weight",
             "stack.blocks.0.project_in.bias", "stack.blocks.10.project_out.weight",
             "stack.blocks.0.attention_norm.weight", "stack.blocks.0.feedforward_norm.weight")
        )
    }  # fmt: skip
    config = {"model": {"_target_": "linear_transformers.models.Transformer", "attention": linear}}
    averaged = {"callbacks": {"EMA": {"weights": dict(weights)}}}
    old = content(1.0) | {"config": config, "format": 2, "state_dict": weights} | averaged
    torch.save(old, tmp_path / "old.ckpt")
    found = read_checkpoint(tmp_path / "old.ckpt")
    assert found["format"] == FORMAT
    assert found["config"]["model"] == {
        "_target_": "linear_transformers.models.Transformer",
        "mixer": {
            "_target_": "linear_transformers.mixers.MultiHeadAttention", "attention": linear,
        },
    }  # fmt: skip
    names = (
        "project_in.weight", "stack.blocks.0.mixer.attention.weight",
        "stack.blocks.0.mixer.project_in.bias", "stack.blocks.10.mixer.project_out.weight",
        "stack.blocks.0.mixer_norm.weight", "stack.blocks.0.feedforward_norm.weight",
    )  # fmt: skip
    for kept in (found["state_dict"], found["callbacks"]["EMA"]["weights"]):
        assert {name: float(kept[name]) for name in kept} == dict(zip(names, range(6), strict=True))


def test_a_missing_checkpoint_is_named(tmp_path, raises_one_line):
    with raises_one_line("gone.ckpt", "does not exist"):
        read_checkpoint(tmp_path / "gone.ckpt")


def test_the_hash_is_sha256(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert file_hash(tmp_path / "x").startswith("ba7816bf8f01cfea")


def test_format_1_is_brought_up_to_date(tmp_path):
    """tests/test_old_checkpoints.py has real ones; this one has everything that changed."""
    package = "linear_transformers"
    model = {
        "_target_": f"{package}.models.Transformer",
        "feature_map": {"_target_": f"{package}.feature_maps.Elu", "_partial_": True},
        "attention": {
            "_target_": f"{package}.attention.LinearAttention", "_partial_": True, "chunk_size": 32,
        },
    }  # fmt: skip
    config = {
        "model": model,
        "scheduler": {"_target_": f"{package}.tasks.schedules.constant", "_partial_": True},
        "callbacks": {"a": {"_target_": f"{package}.runtime.measure.Performance"}},
    }
    states = {
        "ModelCheckpoint{'monitor': 'val/loss', 'mode': 'min'}": {"best": 1},
        "ModelCheckpoint{'monitor': None, 'mode': 'min'}": {"last": 2},
        "EMAWeightAveraging": {"latest_update_step": 3},
    }
    torch.save(content(1.0) | {"config": config, "callbacks": states}, tmp_path / "old.ckpt")
    found = read_checkpoint(tmp_path / "old.ckpt")
    assert found["format"] == FORMAT
    assert found["config"]["model"] == {
        "_target_": f"{package}.models.Transformer",
        "mixer": {
            "_target_": f"{package}.mixers.MultiHeadAttention",
            "attention": {
                "_target_": f"{package}.attention.LinearAttention",
                "feature_map": {"_target_": f"{package}.feature_maps.Elu"},
            },
        },
    }
    assert found["config"]["scheduler"]["_target_"] == f"{package}.training.schedules.constant"
    assert found["config"]["callbacks"]["a"]["_target_"] == f"{package}.callbacks.Performance"
    assert found["callbacks"] == {
        "BestCheckpoint": {"best": 1}, "LastCheckpoint": {"last": 2},
        "EMAWeightAveraging": {"latest_update_step": 3},
    }  # fmt: skip
