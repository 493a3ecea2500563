"""Images that stay in their files: what is read is what is asked for."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from linear_transformers.data import ArrayImages
from linear_transformers.data.rows import Rows, StoredRows
from tests.conftest import PROJECT, TINY

OPTIONS = {"val_size": 5, "batch_size": 4}


def images(count: int, *shape: int, seed: int = 0, levels: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(levels, size=(count, *shape), dtype=np.uint8)


def both(folder: Path, **arrays: np.ndarray) -> tuple[str, str]:
    """The arrays as one file, and as a folder of which some are shards."""
    (folder / "stored").mkdir()
    np.savez(folder / "all.npz", **arrays)
    for name, array in arrays.items():
        for i, part in enumerate(np.array_split(array, 12 if name == "x_train" else 1)):
            shard = f"-{i}" if name == "x_train" else ""
            np.save(folder / "stored" / f"{name}{shard}.npy", part)
    return str(folder / "all.npz"), str(folder / "stored")


@pytest.mark.parametrize(
    "options",
    [{}, {"size": 2}, {"num_train": 7}, {"num_levels": 200}],
    ids=lambda options: " ".join(options) or "as they are",
)
@pytest.mark.parametrize("shape", [(6, 6), (6, 9, 3)])
def test_a_folder_has_the_batches_of_a_file(tmp_path, shape, options):
    levels = options.get("num_levels", 256)
    arrays = {
        "x_train": images(23, *shape, levels=levels),
        "x_test": images(6, *shape, levels=levels),
    }
    keep = np.arange(23) % 4 != 1
    paths = both(tmp_path, **arrays, keep_train=keep)
    held, stored = (ArrayImages(path, **{**OPTIONS, **options}) for path in paths)
    assert isinstance(stored.splits.train, Rows)
    assert stored.shape == held.shape
    for split in ("train", "val", "test"):
        ours, theirs = (source.loader(split) for source in (stored, held))
        assert len(ours) == len(theirs) > 0
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype
            assert a.equal(b)


def test_rows_are_those_of_the_arrays_one_after_the_other():
    parts = [images(count, 2, seed=count) for count in (3, 1, 4)]
    rows, whole = StoredRows(parts), np.concatenate(parts)
    assert (len(rows), rows.shape) == (8, whole.shape)
    for which in (slice(None), slice(2, 6), [7, 0, 3, 3, 2], np.array([4])):
        np.testing.assert_array_equal(rows[which], whole[which])


def test_an_array_and_shards_of_it_are_not_both_read(tmp_path, raises_one_line):
    """Each image would be in training and, held out, in validation."""
    for name in ("x_train", "x_train-0", "x_test"):
        np.save(tmp_path / f"{name}.npy", images(8, 4, 4))
    with raises_one_line("x_train.npy and x_train-0.npy", "Remove"):
        _ = ArrayImages(str(tmp_path), **OPTIONS).splits


@pytest.mark.parametrize(
    ("images_of", "masks_of", "said"),
    [
        ((0, 1, 3, 4), (), ("x_train-3.npy follows x_train-1.npy", "between")),
        (("08", "09", "11"), (), ("x_train-11.npy follows x_train-09.npy", "between")),
        (
            ("00000-of-00003", "00002-of-00003"),
            (),
            ("x_train-00002-of-00003.npy follows x_train-00000-of-00003.npy",),
        ),
        (
            ("00000-of-00003", "00001-of-00003"),
            (),
            ("2 shards of x_train", "x_train-00000-of-00003.npy is of 3. Give all"),
        ),
        ((9, 10, 11), (9, 10), ("keep_train has the shards 9, 10;", "9, 10, 11")),
        ((1, 2), (0, 1), ("keep_train has the shards 0, 1;", "x_train has 1, 2.")),
    ],
)
def test_a_lost_shard_is_missed(tmp_path, raises_one_line, images_of, masks_of, said):
    """Masks would be of other images."""
    np.save(tmp_path / "x_test.npy", images(8, 4, 4))
    for shard in images_of:
        np.save(tmp_path / f"x_train-{shard}.npy", images(4, 4, 4))
    for shard in masks_of:
        np.save(tmp_path / f"keep_train-{shard}.npy", np.ones(4, bool))
    with raises_one_line(*said):
        ArrayImages(str(tmp_path), **OPTIONS).check(1)


def test_shards_and_masks_may_be_numbered_in_several_ways(tmp_path):
    np.save(tmp_path / "x_test.npy", images(8, 4, 4))
    for i, shard in enumerate(("0-of-2", "1-of-2")):
        np.save(tmp_path / f"x_train-{shard}.npy", images(4, 4, 4))
        np.save(tmp_path / f"keep_train-0{i}.npy", np.array([True, True, False, True]))
    splits = ArrayImages(str(tmp_path), **OPTIONS).splits
    assert len(splits.train) + len(splits.val) == 6


def test_what_else_a_folder_has_is_not_read(tmp_path):
    for name in ("x_train", "x_test"):
        np.save(tmp_path / f"{name}.npy", images(8, 4, 4))
    np.save(tmp_path / "mean.npy", np.float64(0.5))
    (tmp_path / "._x_train.npy").write_bytes(b"macOS")
    assert len(ArrayImages(str(tmp_path), **OPTIONS).splits.test) == 8


def test_shards_of_different_sizes_are_refused(tmp_path, raises_one_line):
    np.save(tmp_path / "x_train-0.npy", images(8, 4, 4))
    np.save(tmp_path / "x_train-1.npy", images(8, 4, 5))
    with raises_one_line("x_train-1.npy", "(8, 4, 5)", "(4, 4)"):
        ArrayImages(str(tmp_path), **OPTIONS).check(1)


HALF = b"\x93NUMPY\x01\x00\x02\x00{ "  # an array's header, of which half is missing


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", HALF, b"no array"])
def test_a_damaged_shard_is_named(tmp_path, raises_one_line, content):
    (tmp_path / "x_train.npy").write_bytes(content)
    with raises_one_line("x_train.npy cannot be read as an .npy file"):
        ArrayImages(str(tmp_path), **OPTIONS).check(1)


def test_an_empty_folder_is_refused(tmp_path, raises_one_line):
    with raises_one_line("has no array x_train"):
        ArrayImages(str(tmp_path), **OPTIONS).check(1)


# Trains, then prints by how much the memory that is no file's grew above the library's own.
PROGRAM = """
import json, sys
from tests.programs import run

def anonymous():
    status = open("/proc/self/status").read()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))

*words, small = json.loads(sys.argv[1])
run("train", *words, f"data.path={small}", "run_id=small")
before = anonymous()
run("train", *words, f"data.path={sys.argv[2]}", "run_id=large")
print(json.dumps(anonymous() - before))
"""
COUNT, BOUND = 200_000, 60_000  # images of 3 kB, 614 MB; kilobytes


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells of memory")
def test_images_that_exceed_memory_are_trained_on(tmp_path):
    """Of 200,000 images, no tenth is ever in memory: what is read of files can be dropped."""
    for name, count in (("small", 100), ("large", COUNT)):
        (tmp_path / name).mkdir()
        size = (count, 32, 32, 3)
        np.lib.format.open_memmap(  # a hole in the file: it takes no room
            tmp_path / name / "x_train.npy", mode="w+", dtype=np.uint8, shape=size
        ).flush()
        for split in ("x_val", "x_test"):
            np.save(tmp_path / name / f"{split}.npy", images(4, 32, 32, 3))
    words = [
        *TINY, "data=arrays", "trainer=cpu", "trainer.max_steps=2", "trainer.max_epochs=1",
        "data.batch_size=2", "~callbacks.samples", f"paths.runs={tmp_path}/runs",
        str(tmp_path / "small"),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(words), str(tmp_path / "large")],
        cwd=PROJECT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < BOUND
