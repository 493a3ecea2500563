"""What models see of images, and what users hear of images that cannot be used."""

import gzip
import pickle
from urllib.error import URLError

import numpy as np
import pytest
import torch

from linear_transformers.data import ArrayImages, Digits, ImageShape, TorchvisionImages
from linear_transformers.data.images import split_off
from linear_transformers.data.sequences import to_sequences
from tests.files import write_mnist


def test_digits_are_split_once_and_for_all():
    data = Digits(batch_size=32)
    sizes = [len(images) for images in data.splits]
    assert sizes == [1437, 180, 180]
    assert data.splits.train.max() == data.shape.num_levels - 1
    # Two rows of a test image, so that nobody moves the split unawares.
    first_pixels = [0, 0, 1, 12, 16, 14, 2, 0, 0, 0, 13, 11, 3, 16, 5, 0]
    assert data.splits.test[0].ravel()[:16].tolist() == first_pixels
    together = np.concatenate(data.splits).reshape(1797, -1)
    assert len(np.unique(together, axis=0)) == 1797


def test_a_sequence_runs_row_by_row_with_channels_together():
    images = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
    assert to_sequences(images)[0].tolist() == list(range(18))
    shape = ImageShape(2, 3, 3, 256)
    assert shape.length == 18
    np.testing.assert_array_equal(shape.to_images(to_sequences(images)), images)


def test_training_batches_are_whole_and_evaluation_sees_every_image():
    data = Digits(batch_size=32)
    train = list(data.loader("train"))
    assert {tuple(batch.shape) for batch in train} == {(32, 64)}
    assert sum(len(batch) for batch in list(data.loader("test"))) == 180
    assert train[0].dtype == torch.uint8


def test_split_off_is_fixed_and_complete():
    images = np.arange(100, dtype=np.uint8).reshape(100, 1, 1, 1)
    kept, held_out = split_off(images, 10)
    again = split_off(images, 10)[1]
    np.testing.assert_array_equal(held_out, again)
    assert sorted([*kept.ravel(), *held_out.ravel()]) == list(range(100))


@pytest.mark.parametrize("count", [0, 100, 101])
def test_an_impossible_validation_split_is_refused(count, raises_one_line):
    with raises_one_line(f"data.val_size={count}", "between 1 and 99"):
        split_off(np.zeros((100, 1, 1, 1), np.uint8), count)


def no_network(*args, **kwargs):
    raise URLError("no route to host")


@pytest.mark.parametrize("size", [14, 7, 28])
def test_images_are_averaged_down_over_whole_blocks(tmp_path, size):
    write_mnist(tmp_path)
    root = str(tmp_path)
    small = TorchvisionImages("MNIST", root, val_size=5, size=size, batch_size=2)
    full = TorchvisionImages("MNIST", root, val_size=5, batch_size=2).splits.test
    assert small.shape == ImageShape(size, size, 1, 256)
    block = 28 // size
    expected = full[3, :block, block : 2 * block].mean()
    assert abs(int(small.splits.test[3, 0, 1, 0]) - expected) <= 0.5
    assert small.splits.test.shape == (20, size, size, 1)


@pytest.mark.parametrize("size", [0, 10, 56])
def test_a_size_that_does_not_divide_is_refused(size, raises_one_line):
    with raises_one_line(f"size={size}", *(("28 x 28", "14") if size else ("at least 1",))):
        TorchvisionImages("MNIST", ".", val_size=5, size=size, batch_size=2)


def test_mnist_files_that_are_there_are_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    write_mnist(tmp_path)
    data = TorchvisionImages("MNIST", str(tmp_path), val_size=5, batch_size=2)
    data.fetch()
    assert [images.shape for images in data.splits] == [
        (15, 28, 28, 1), (5, 28, 28, 1), (20, 28, 28, 1),
    ]  # fmt: skip
    assert data.shape.length == 784


def test_cifar10_files_that_are_there_are_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    # The random files below cannot have the official checksums.
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), np.uint8)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        content = {"data": pixels.reshape(4, -1), "labels": [0] * 4}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["x"] * 10}))
    data = TorchvisionImages("CIFAR10", str(tmp_path), val_size=5, batch_size=2)
    assert data.splits.train.shape == (15, 32, 32, 3)
    assert data.shape.length == 3072
    # Red, green and blue of the first pixel stand next to each other.
    assert to_sequences(data.splits.test)[0, :3].tolist() == pixels[0, :, 0, 0].tolist()


@pytest.mark.parametrize(("dataset", "module"), [("MNIST", "mnist"), ("CIFAR10", "cifar")])
def test_missing_files_without_a_network_say_where_to_put_them(
    dataset, module, tmp_path, monkeypatch, raises_one_line
):
    target = f"torchvision.datasets.{module}.download_and_extract_archive"
    monkeypatch.setattr(target, no_network)
    data = TorchvisionImages(dataset, str(tmp_path), val_size=5, batch_size=2)
    with raises_one_line(dataset, str(tmp_path), "nor downloaded", "data.root=DIR"):
        data.fetch()


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_a_download_of_something_else_is_named(tmp_path, monkeypatch, raises_one_line, content):
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    write_mnist(tmp_path)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").write_bytes(content)
    with raises_one_line("MNIST", str(tmp_path), "could not be read"):
        TorchvisionImages("MNIST", str(tmp_path), val_size=5, batch_size=2).splits  # noqa: B018


def test_a_truncated_download_is_named(tmp_path, monkeypatch, raises_one_line):
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", no_network)
    write_mnist(tmp_path)
    file = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:1000])
    data = TorchvisionImages("MNIST", str(tmp_path), val_size=5, batch_size=2)
    with raises_one_line("MNIST", str(tmp_path)):
        data.splits  # noqa: B018


def save(tmp_path, *, size=None, **arrays):
    path = tmp_path / "images.npz"
    np.savez_compressed(path, **arrays)
    return ArrayImages(str(path), val_size=3, size=size, batch_size=2)


def pixels(*shape, dtype=np.uint8):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("size", [(4, 5), (4, 5, 1), (4, 5, 3)])
def test_arrays_of_grey_and_colour_images_are_read(tmp_path, size):
    data = save(tmp_path, x_train=pixels(10, *size), x_test=pixels(6, *size))
    channels = size[2] if len(size) == 3 else 1
    assert data.shape == ImageShape(4, 5, channels, 256)
    assert [len(images) for images in data.splits] == [7, 3, 6]


def test_arrays_are_averaged_down_over_whole_blocks(tmp_path, raises_one_line):
    arrays = {"x_train": pixels(10, 4, 6, 3), "x_test": pixels(6, 4, 6, 3)}
    data = save(tmp_path, size=2, **arrays)
    assert data.shape == ImageShape(2, 3, 3, 256)
    means = arrays["x_test"].reshape(6, 2, 2, 3, 2, 3).mean((2, 4))
    np.testing.assert_array_equal(data.splits.test, np.floor(means + 0.5))
    assert [images.shape[1:] for images in data.splits] == [(2, 3, 3)] * 3
    with raises_one_line("data.size=1", "4 x 6", "[2, 4]"):
        save(tmp_path, size=1, **arrays).splits  # noqa: B018


def test_other_arrays_are_not_read(tmp_path):
    """Labels, say: they may be objects, which only a pickle holds."""
    labels = np.array(["cat", None], dtype=object)
    data = save(tmp_path, x_train=pixels(10, 2, 2), x_test=pixels(6, 2, 2), y_train=labels)
    assert [len(images) for images in data.splits] == [7, 3, 6]


def test_masks_leave_images_out_and_x_val_is_used(tmp_path):
    keep_test = np.array([True, False, True, True])
    data = save(
        tmp_path, x_train=pixels(10, 2, 2), x_val=pixels(4, 2, 2), x_test=pixels(4, 2, 2),
        keep_train=np.arange(10) != 9, keep_test=keep_test,
    )  # fmt: skip
    assert [len(images) for images in data.splits] == [9, 4, 3]
    np.testing.assert_array_equal(data.splits.test[..., 0], pixels(4, 2, 2)[keep_test])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x_test": pixels(4, 2, 2)}, ("no array x_train", "x_test")),
        ({"x_test": pixels(4, 2, 2), "train": pixels(4)}, ("it holds ['train', 'x_test']",)),
        ({"x_train": pixels(4, 2, 2)}, ("no array x_test",)),
        ({"x_train": pixels(4, 2, 2, dtype=float)}, ("x_train is float64", "uint8")),
        ({"x_train": pixels(4, 4)}, ("shape (4, 4)", "(n, height, width)")),
        ({"x_train": pixels(0, 2, 2)}, ("shape (0, 2, 2)",)),
        ({"x_train": pixels(4, 2, 2, 2)}, ("2 channels", "1 or 3")),
        ({"x_train": pixels(4, 2, 2), "keep_tset": np.ones(4)}, ("keep_tset", "keep_test")),
        ({"x_train": pixels(9, 2, 2), "x_test": pixels(4, 3, 2)}, ("x_test", "(3, 2, 1)")),
        ({"x_train": pixels(9, 2, 2), "keep_train": np.ones(8, bool)}, ("keep_train", "(9,)")),
        ({"x_train": pixels(9, 2, 2), "keep_train": np.ones(9)}, ("keep_train", "float64")),
        ({"x_train": pixels(9, 2, 2), "keep_train": np.zeros(9, bool)}, ("keeps none",)),
        ({"x_train": pixels(9, 2, 2), "keep_train": np.bool_(True)}, ("keep_train", "shape ()")),
    ],
)  # fmt: skip
def test_arrays_of_the_wrong_shape_or_type_are_refused(tmp_path, arrays, words, raises_one_line):
    if "x_test" not in arrays and "no array x_test" not in words:
        arrays = arrays | {"x_test": pixels(4, 2, 2)}
    data = save(tmp_path, **arrays)
    with raises_one_line("images.npz", *words):
        data.splits  # noqa: B018


def test_values_beyond_the_levels_are_refused(tmp_path, raises_one_line):
    path = tmp_path / "images.npz"
    np.savez(path, x_train=pixels(9, 2, 2), x_test=pixels(4, 2, 2))
    with raises_one_line("value 35", "num_levels=17"):
        ArrayImages(str(path), val_size=3, num_levels=17, batch_size=2).shape  # noqa: B018


@pytest.mark.parametrize("content", [b"", b"not a zip", gzip.compress(b"x", mtime=0)])
def test_a_file_that_is_no_npz_is_refused(tmp_path, content, raises_one_line):
    path = tmp_path / "images.npz"
    path.write_bytes(content)
    with raises_one_line(str(path), "npz"):
        ArrayImages(str(path), val_size=3, batch_size=2).splits  # noqa: B018


def test_a_truncated_npz_and_a_pickle_are_refused(tmp_path, raises_one_line):
    path = tmp_path / "images.npz"
    np.savez(path, x_train=pixels(9, 2, 2), x_test=pixels(4, 2, 2))
    path.write_bytes(path.read_bytes()[:-50])
    with raises_one_line(str(path), "cannot be read"):
        ArrayImages(str(path), val_size=3, batch_size=2).splits  # noqa: B018
    np.savez(path, x_train=np.array([{}], dtype=object))
    with raises_one_line(str(path), "cannot be read"):
        ArrayImages(str(path), val_size=3, batch_size=2).splits  # noqa: B018


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_a_byte_of_an_npz_that_changed_is_told_or_of_no_account(tmp_path, write):
    path = tmp_path / "images.npz"
    write(path, x_train=pixels(9, 2, 2), x_test=pixels(4, 2, 2))
    whole = path.read_bytes()
    splits = ArrayImages(str(path), val_size=3, batch_size=2).splits
    told = 0
    for i, byte in enumerate(whole):
        path.write_bytes(whole[:i] + bytes([byte ^ 0xFF]) + whole[i + 1 :])
        try:
            found = ArrayImages(str(path), val_size=3, batch_size=2).splits
        except ValueError:
            told += 1
        else:
            for images, expected in zip(found, splits, strict=True):
                np.testing.assert_array_equal(images, expected)
    assert told > len(whole) / 2


def test_a_missing_file_is_named(tmp_path, raises_one_line):
    with raises_one_line("nowhere.npz", "does not exist", "data_root=FILE"):
        ArrayImages(str(tmp_path / "nowhere.npz"), val_size=3, batch_size=2).splits  # noqa: B018


def test_fewer_images_than_a_batch_are_refused(raises_one_line):
    with raises_one_line("1437 training images", "batch of 2000", "data.batch_size=1437"):
        Digits(batch_size=2000).check(world_size=1)


def test_training_can_be_limited_to_some_images():
    data = Digits(batch_size=8, num_train=20)
    assert [len(images) for images in data.splits] == [20, 180, 180]
    assert len(list(data.loader("train"))) == 2


def test_training_on_more_images_than_there_are_is_refused(raises_one_line):
    with raises_one_line("data.num_train=1438", "1437 training images"):
        Digits(batch_size=8, num_train=1438).splits  # noqa: B018
