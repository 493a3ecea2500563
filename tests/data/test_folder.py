"""Pictures in folders: which are read, how, and in what order."""

import contextlib
import itertools
import os
import signal
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image

from linear_transformers.data import FolderImages, ImageShape
from linear_transformers.runs.checkpoint import read_checkpoint
from tests.conftest import PROJECT, TINY
from tests.programs import complaint, figures, run, start

OPTIONS = {"batch_size": 4, "workers": 0}
XMP = 700  # a tag of TIFF


def pictures(folder, count: int, size=(8, 6), mode="RGB", suffixes=(".png",), seed=0) -> None:
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for i, suffix in zip(range(count), itertools.cycle(suffixes), strict=False):
        shape = (size[1], size[0], *((3,) if mode == "RGB" else ()))
        pixels = random.integers(256, size=shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:03d}{suffix}", quality=95)


def batches(source: FolderImages, split: str, epoch: int = 0, **place) -> list:
    loader = source.loader(split, **place)
    if split == "train":
        loader.sampler.set_epoch(epoch)
    return [batch.tolist() for batch in loader]


@pytest.fixture
def split(tmp_path):
    """Two kinds of training pictures, at two depths, and test pictures."""
    pictures(tmp_path / "train/cats", 13, suffixes=(".png", ".JPG", ".jpeg"))
    pictures(tmp_path / "train", 8, seed=1)
    pictures(tmp_path / "test", 5, seed=2)
    (tmp_path / "train/notes.txt").write_text("no picture")
    return tmp_path


def test_pictures_of_any_depth_are_read_and_some_are_held_out(split):
    source = FolderImages(str(split), **OPTIONS)
    assert source.shape == ImageShape(6, 8, 3, 256)
    assert [len(items) for items in source.splits] == [19, 2, 5]
    assert source.notes() == [f"data.path: 1 of 22 files in {split}/train are no pictures"]
    first = np.asarray(Image.open(split / "test/000.png"))
    np.testing.assert_array_equal(source.splits.test[:1][0], first)


@pytest.mark.parametrize(
    "suffix", [".bmp", ".tif", ".ppm", ".tga", ".jfif", ".jp2", ".avif", ".WebP", ".GIF"]
)
def test_pictures_of_other_formats_are_read(tmp_path, suffix):
    """And one that is turned has the size that is seen."""
    pictures(tmp_path, 7, mode="L", suffixes=(suffix,))
    turned = {ExifTags.Base.Orientation.value: 6, XMP: b"<x/>"}
    stored = np.arange(48, dtype=np.uint8).reshape(8, 6)
    Image.fromarray(stored).save(tmp_path / "turned.tif", tiffinfo=turned)
    source = FolderImages(str(tmp_path), channels=1, **OPTIONS)
    assert source.shape == ImageShape(6, 8, 1, 256)
    images = np.concatenate([items[:] for items in source.splits])[..., 0]
    assert len(images) == 8
    assert (images == np.rot90(stored, -1)).all((1, 2)).any()


def test_a_picture_whose_white_is_unknown_is_told_before_a_run_begins(tmp_path, raises_one_line):
    pictures(tmp_path, 7, mode="L")
    Image.fromarray(np.zeros((6, 8), np.float32)).save(tmp_path / "depth.tif")
    with raises_one_line("depth.tif has F pixels", "8 or 16 bits"):
        FolderImages(str(tmp_path), channels=1, size=4, **OPTIONS).check(1)


def test_one_folder_is_split_without_overlap(tmp_path):
    pictures(tmp_path, 40)
    source = FolderImages(str(tmp_path), val_size=6, **OPTIONS)
    parts = [{image.tobytes() for image in items[:]} for items in source.splits]
    assert [len(part) for part in parts] == [30, 6, 4]
    assert len(set.union(*parts)) == 40


@pytest.mark.parametrize("other", ["test", "val"])
def test_a_training_folder_of_another_name_is_not_a_folder_to_split(
    tmp_path, other, raises_one_line
):
    pictures(tmp_path / "training", 9)
    pictures(tmp_path / other, 5, seed=1)
    with raises_one_line(f"{other}/ and no train/"):
        FolderImages(str(tmp_path), **OPTIONS).splits  # noqa: B018


def test_folders_of_splits_a_level_further_down_are_not_mixed(tmp_path, raises_one_line):
    for split in ("train", "test"):
        pictures(tmp_path / "images" / split, 5)
    with raises_one_line("no train/", "would be mixed", f"data.path={tmp_path / 'images'}."):
        FolderImages(str(tmp_path), **OPTIONS).splits  # noqa: B018
    for place in ("cars", "buses/test"):  # names of what they show
        pictures(tmp_path / "others" / place, 5, seed=1)
    assert len(FolderImages(str(tmp_path / "others"), **OPTIONS).splits.train) == 8


@pytest.mark.parametrize("names", ["train test valid", "Train Test", "train test dev", "training"])
def test_folders_that_are_nearly_those_of_splits_are_refused(tmp_path, names, raises_one_line):
    for name in names.split():
        pictures(tmp_path / name, 9)
    with raises_one_line("has ", "Call it "):
        FolderImages(str(tmp_path), **OPTIONS).splits  # noqa: B018


def test_links_to_folders_are_followed_once(split):
    pictures(split / "elsewhere/deep", 4, seed=3)
    (split / "train/linked").symlink_to(split / "elsewhere")
    (split / "elsewhere/back").symlink_to(split / "train")
    source = FolderImages(str(split), **OPTIONS)
    assert sum(map(len, source.splits)) == 26 + 4


def test_a_few_pictures_are_enough(tmp_path):
    pictures(tmp_path, 9)
    FolderImages(str(tmp_path), **OPTIONS).check(1)


def test_pictures_are_cropped_resized_and_made_grey(tmp_path):
    pictures(tmp_path / "train", 6, size=(20, 10))
    pictures(tmp_path / "test", 3, size=(7, 30), mode="L")
    source = FolderImages(str(tmp_path), size=5, channels=1, **OPTIONS)
    assert source.shape == ImageShape(5, 5, 1, 256)
    assert batches(source, "test")[0][0].__len__() == 25


def test_other_sizes_are_refused(split, raises_one_line):
    pictures(split / "val", 2, size=(8, 7))
    with raises_one_line("val/000.png is 8 x 7", "8 x 6", "data.size=N"):
        FolderImages(str(split), **OPTIONS).check(1)


@pytest.mark.parametrize("damage", ["far too large", "an orientation that is no number"])
def test_a_header_that_cannot_be_is_one_line(tmp_path, raises_one_line, damage):
    pictures(tmp_path, 9, suffixes=(".jpg",))
    path = tmp_path / "004.jpg"
    if damage == "far too large":
        pixels = path.read_bytes()
        size = pixels.index(b"\xff\xc0") + 5  # of the frame: its height and width
        path.write_bytes(pixels[:size] + b"\xff\xf0\xff\xf0" + pixels[size + 4 :])
    else:
        entry = b"\x00\x01\x01\x12\x00\x02\x00\x00\x00\x04six\x00"  # a text
        exif = b"Exif\x00\x00MM\x00*\x00\x00\x00\x08" + entry + b"\x00\x00\x00\x00"
        Image.open(path).save(path, exif=exif)
    with raises_one_line("004.jpg"):
        FolderImages(str(tmp_path), **OPTIONS).check(1)


def test_a_folder_without_pictures_is_named(tmp_path, raises_one_line):
    with raises_one_line("has no pictures", "data.path="):
        FolderImages(str(tmp_path), **OPTIONS).check(1)


def test_a_file_for_a_folder_and_a_single_picture_are_told(tmp_path, raises_one_line):
    pictures(tmp_path / "one", 1)
    with raises_one_line("000.png is a file"):
        FolderImages(f"{tmp_path}/one/000.png", **OPTIONS).splits  # noqa: B018
    with raises_one_line("no image can be held out of 1", "at least three"):
        FolderImages(f"{tmp_path}/one", **OPTIONS).splits  # noqa: B018


def test_folders_and_pictures_may_have_any_name(tmp_path):
    folder = tmp_path / "d [1], {a}=ü (2) it's"
    pictures(folder, 5)
    with contextlib.suppress(OSError):  # where file systems have names in UTF-8 alone
        (folder / "000.png").rename(folder / os.fsdecode(b"\xff.png"))
    words = (*TINY, "data=folder", f"data.path={folder}", "data.batch_size=1", "data.size=4")
    runs = f"{folder}/runs of it"
    run("train", *words, "trainer=cpu", "trainer.max_steps=1", f"paths.runs={runs}", "run_id=a")
    run("sample", f"ckpt={runs}/a", "n=1", "mode=generate", "gif=false", f"out={folder}/out (1)")
    assert (folder / "out (1)/0000.png").is_file()


@pytest.mark.parametrize("key", ["val_size", "test_size"])
def test_the_key_of_a_part_that_is_too_large_is_named(tmp_path, raises_one_line, key):
    pictures(tmp_path, 9)
    with raises_one_line(f"data.{key}=9"):
        FolderImages(str(tmp_path), **{key: 9}, **OPTIONS).check(1)


def test_workers_change_nothing(split):
    """Not the order of any epoch, nor where a run goes on, nor the share of a device."""
    alone, helped = (FolderImages(str(split), batch_size=4, workers=n) for n in (0, 1))
    for epoch in range(2):
        assert batches(alone, "train", epoch) == batches(helped, "train", epoch)
    for rank in range(2):
        place = {"rank": rank, "world_size": 2}
        assert batches(alone, "test", **place) == batches(helped, "test", **place)
    loader = helped.loader("train")
    iterator = iter(loader)  # which the trainer makes before it sets either
    loader.sampler.set_epoch(1)
    loader.sampler.skip = 2
    assert [batch.tolist() for batch in iterator] == batches(alone, "train", 1)[2:]


def test_a_png_that_says_after_its_pixels_that_it_is_turned_is_not_cropped(
    tmp_path, raises_one_line
):
    """Its header tells another size than is seen."""
    pictures(tmp_path, 9)
    source = FolderImages(str(tmp_path), **OPTIONS)
    exif = Image.Exif()
    exif[0x0112] = 6
    chunk = b"eXIf" + exif.tobytes()[6:]
    late = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    for path in tmp_path.glob("*.png"):
        pixels, end = (data := path.read_bytes())[:-12], data[-12:]
        path.write_bytes(pixels + late + end)
    with raises_one_line("6 x 8"):
        source.splits.test[:1]


@pytest.mark.parametrize("then", ["", "raise KeyError"])
def test_a_script_ends_with_its_workers(split, then):
    """Whether or not it still holds the loader."""
    code = (
        "from linear_transformers.data import FolderImages\n"
        f"loader = FolderImages({str(split)!r}, batch_size=4, workers=2).loader('val')\n"
        f"print(len([*loader]))\n{then}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=100
    )
    assert (done.stdout, done.returncode) == ("1\n", 1 if then else 0)


def test_a_run_trains_on_pictures_with_workers(split):
    words = (*TINY, "data=folder", f"data.path={split}", "data.batch_size=4", "data.workers=1")
    words += ("trainer=cpu", "trainer.max_epochs=2", f"paths.runs={split}/runs", "data.size=4")
    run("train", *words, "run_id=helped")
    run("train", *words, "run_id=alone", "data.workers=0")
    name = "val/bits_per_dim"
    assert figures(split / "runs/helped", name) == figures(split / "runs/alone", name)


def test_a_model_that_was_taken_along_is_told_where_its_pictures_are(split, tmp_path):
    words = (*TINY, "data=folder", f"data.path={split}", "data.batch_size=4", "data.size=4")
    places = (f"paths.runs={tmp_path}/runs",)
    run("train", *words, "trainer=cpu", "trainer.max_steps=1", *places, "run_id=a")
    run("export", "ckpt=a", f"out={tmp_path}/taken", *places)
    job = (f"ckpt={tmp_path}/taken", "gif=false", *places)
    message = complaint("sample", *job)
    assert f"data.path={split.name} does not exist" in message
    assert "data_root=DIR; or image=FILE, or mode=generate" in message
    for told in (("images=1", f"data_root={split}"), ("n=1", "mode=generate")):
        assert "1 image" in run("sample", *job, *told, f"out={tmp_path}/{told[0][0]}")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_workers_get_too_is_the_runs_alone(split, name):
    """As from Ctrl-C, `timeout` or Slurm, which tell all processes."""
    words = (*TINY, "data=folder", f"data.path={split}", "data.batch_size=4", "data.workers=1")
    words += ("data.size=4", "trainer=cpu", "trainer.max_epochs=10000", f"paths.runs={split}/runs")
    options = {"start_new_session": True, "stderr": subprocess.STDOUT}
    with start("train", *words, "run_id=a", **options) as process:
        assert any(line.startswith("epoch 1") for line in process.stdout)
        os.killpg(process.pid, signal.Signals[name])
        said = process.stdout.read()
    assert process.returncode == 128 + signal.Signals[name], said
    assert "stopped  by" in said
    assert "run_id=a resume=auto" in said
    assert read_checkpoint(split / "runs/a/checkpoints/last.ckpt")["global_step"] > 0
    assert not list(split.rglob("*.part"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_picture_is_one_line(split, workers):
    path = split / "train/cats/000.png"
    path.write_bytes(path.read_bytes()[:-40])
    message = complaint(
        "train", *TINY, "data=folder", f"data.path={split}", "data.batch_size=4", "trainer=cpu",
        f"data.workers={workers}", f"paths.runs={split}/runs",
    )  # fmt: skip
    assert "train/cats/000.png is damaged" in message


def test_another_picture_leaves_the_others_in_their_parts(tmp_path):
    """But one of each part, which makes room: a run that goes on has not trained on its test."""

    def parts() -> list[set[str]]:
        source = FolderImages(str(tmp_path), val_size=8, test_size=8, **OPTIONS)
        return [{*items.paths} for items in source.splits]

    pictures(tmp_path, 60)
    before = parts()
    pictures(tmp_path / "more", 1, seed=9)
    for old, new in zip(before, parts(), strict=True):
        assert len(old - new) <= 2


def test_what_is_no_picture_is_left_out(split):
    """What macOS leaves beside pictures, and folders that are named like one."""
    count = len(FolderImages(str(split), **OPTIONS).splits.train)
    (split / "train/._000.png").write_bytes(b"\0\5\x16\7")
    (split / "train/of.png").mkdir()
    assert len(FolderImages(str(split), **OPTIONS).splits.train) == count


@pytest.mark.parametrize("size", [None, 4])
def test_what_cannot_be_read_is_told_before_training(split, raises_one_line, size):
    (split / "test/broken.png").write_bytes(b"no picture")
    with raises_one_line("broken.png", "Remove it"):
        _ = FolderImages(str(split), size=size, **OPTIONS).splits
