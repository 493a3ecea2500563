"""Checkpoints are whole or absent, and data only."""

import os
import pickle

import pytest
import torch

from linear_transformers.runtime.checkpoint import AtomicCheckpoints, file_hash, load_checkpoint

SHAPE = {"height": 8, "width": 8, "channels": 1, "num_levels": 17}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "last.ckpt"
    AtomicCheckpoints().save_checkpoint(content(1.0), path)
    return path


def content(value: float) -> dict:
    return {
        "config": {"model": {}},
        "shape": SHAPE,
        "state_dict": {"w": torch.full((999,), value)},
    }


def test_what_was_saved_is_loaded(path):
    assert load_checkpoint(path)["state_dict"]["w"].unique().item() == 1.0
    assert torch.load(path, weights_only=True)["config"] == {"model": {}}


@pytest.mark.parametrize("failing", ["torch.save", "os.fsync"])
def test_a_failed_save_leaves_the_previous_checkpoint(path, failing, monkeypatch, raises_one_line):
    def disk_full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, disk_full)
    with raises_one_line("last.ckpt", "No space left"):
        AtomicCheckpoints().save_checkpoint(content(2.0), path)
    monkeypatch.undo()
    assert load_checkpoint(path)["state_dict"]["w"][0] == 1.0
    assert os.listdir(path.parent) == ["last.ckpt"]  # noqa: PTH208


def test_an_interrupted_save_leaves_the_previous_checkpoint_alone(path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpoints().save_checkpoint(content(2.0), path)
    assert load_checkpoint(path)["state_dict"]["w"][0] == 1.0
    assert os.listdir(path.parent) == ["last.ckpt"]  # noqa: PTH208


@pytest.mark.parametrize("size", [0, 10, 1000, -1])
def test_a_truncated_checkpoint_is_refused(path, size, raises_one_line):
    path.write_bytes(path.read_bytes()[:size])
    with raises_one_line("last.ckpt", "not a checkpoint"):
        load_checkpoint(path)


def test_a_flipped_bit_is_found(path, raises_one_line):
    data = bytearray(path.read_bytes())
    position = data.index(torch.full((999,), 1.0).numpy().tobytes()) + 2000
    data[position] ^= 1
    path.write_bytes(data)
    with raises_one_line("last.ckpt", "damaged"):
        load_checkpoint(path)


class Malicious:
    def __reduce__(self):
        return (os.system, ("touch executed",))


@pytest.mark.parametrize("save", [torch.save, lambda x, path: path.write_bytes(pickle.dumps(x))])
def test_a_malicious_checkpoint_is_not_executed(tmp_path, save, monkeypatch, raises_one_line):
    monkeypatch.chdir(tmp_path)
    save(content(1.0) | {"extra": Malicious()}, tmp_path / "evil.ckpt")
    with raises_one_line("evil.ckpt"):
        load_checkpoint(tmp_path / "evil.ckpt")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "other",
    [
        {"state_dict": {}},
        [1, 2],
        content(1.0) | {"shape": SHAPE | {"height": 0}},
        content(1.0) | {"shape": SHAPE | {"width": "8"}},
        content(1.0) | {"state_dict": {"w": 1}},
        content(1.0) | {"config": None},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, other, raises_one_line):
    torch.save(other, tmp_path / "other.ckpt")
    with raises_one_line("other.ckpt", "not a checkpoint of this project"):
        load_checkpoint(tmp_path / "other.ckpt")


def test_a_missing_checkpoint_is_named(tmp_path, raises_one_line):
    with raises_one_line("gone.ckpt", "does not exist"):
        load_checkpoint(tmp_path / "gone.ckpt")


def test_the_hash_is_sha256(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert file_hash(tmp_path / "x").startswith("ba7816bf8f01cfea")
