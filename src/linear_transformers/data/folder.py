"""A user's own images: pictures in folders, decoded when a batch needs them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from linear_transformers.config.ranges import Count, CountOrZero, Levels, Size, ranged
from linear_transformers.data.base import files_below
from linear_transformers.data.image_file import FORMATS, read_image, size_of, suffixes
from linear_transformers.data.images import ImageShape, ImageSource, split_off
from linear_transformers.data.rows import Rows
from linear_transformers.data.sequences import Splits
from linear_transformers.provenance import cores

# What folders of splits are called, and what they are to be called here.
MEANT = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class FolderImages(ImageSource):
    """Pictures in `train/`, `test/` and optionally `val/`, at any depth: PNG, JPEG, WebP and others
    that Pillow reads.

    Without these folders, parts of all pictures below `path` are held out.

    Args:
        path: The folder.
        size: The rows and columns of the images: pictures are cropped about their centre to a
            square, and resampled. None takes them as they are, all of one size.
        channels: 1 for grey images, 3 for colour.
        val_size: The number of training pictures held out for validation if there is no `val/`;
            None is a tenth, at most 1,000.
        test_size: The same for the test, if there is no `train/`.
        num_levels: The number of levels of a sub-pixel.
        workers: The number of processes that decode; 0 is none but the training's. None is one
            fewer than there are cores, at most 8.
        batch_size: See `SequenceSource`.
        options: See `SequenceSource`.

    Raises:
        ValueError: There are no pictures, or they are of several sizes and `size` is None.
    """

    @ranged
    def __init__(
        self,
        path: str,
        *,
        size: Size | None = None,
        channels: Literal[1, 3] = 3,
        val_size: Count | None = None,
        test_size: Count | None = None,
        num_levels: Levels = 256,
        workers: CountOrZero | None = None,
        batch_size: Count,
        **options: Any,
    ):
        super().__init__(batch_size, **options)
        self.path = Path(path)
        self.size = size
        self.channels = channels
        self.val_size = val_size
        self.test_size = test_size
        self.num_levels = num_levels
        self.workers = min(8, cores() - 1) if workers is None else workers

    def load(self) -> Splits:
        divided = (self.path / "train").is_dir()
        other = next((x for x in ("test", "val") if (self.path / x).is_dir()), None)
        if other is not None and not divided:
            raise ValueError(
                f"data.path={self.path} has {other}/ and no train/, so that all would be "
                "trained on. Give train/ and test/, or one folder of pictures to split."
            )
        below = [x.parent for x in self.path.glob("*/train") if (x.parent / "test").is_dir()]
        if below and not divided:
            raise ValueError(
                f"data.path={self.path} has no train/, but {below[0].name}/train and test: they "
                f"would be mixed. Use data.path={below[0]}."
            )
        self._check_names()
        if divided:
            train, test = self._pictures("train"), self._pictures("test")
            val = self._pictures("val") if (self.path / "val").is_dir() else None
        else:
            train, val = self._pictures("."), None
            train, test = self._split_off(train, self.test_size, key="test_size")
        if val is None:
            train, val = self._split_off(train, self.val_size, key="val_size")
        shape = self._shape_of((train, val, test))
        resize = self.size is not None
        return Splits(*(Pictures(paths, shape, resize=resize) for paths in (train, val, test)))

    def _check_names(self) -> None:
        """Refuse names that are nearly those of splits: a misspelt one must be an error."""
        folders = self.path.iterdir() if self.path.is_dir() else ()
        for folder in folders:
            meant = MEANT.get(folder.name.lower())
            if meant is not None and folder.name != meant and folder.is_dir():
                raise ValueError(f"data.path={self.path} has {folder.name}/. Call it {meant}/.")

    def _split_off(
        self, pictures: np.ndarray, count: int | None, *, key: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hold out some, by their names: those that stay are where they were in a later run."""
        names = [Path(path).relative_to(self.path).as_posix() for path in pictures]
        return split_off(pictures, count, key=key, names=names)

    def _pictures(self, folder: str) -> np.ndarray:
        """Return the paths of all pictures of a folder, in an order that does not change."""
        if not self.path.is_dir():
            fault = "is a file" if self.path.exists() else "does not exist"
            raise ValueError(
                f"data.path={self.path} {fault}. Give the folder of the pictures (for "
                "sample.py: data_root=DIR; or image=FILE, or mode=generate)."
            )
        place = self.path / folder
        files = [*files_below(place)]
        found = sorted(str(p) for p in files if p.suffix.lower() in suffixes())
        if not found:
            raise ValueError(
                f"data.path={place} has no pictures ({', '.join(FORMATS)}). Give a folder with "
                "train/ and test/, or one of pictures to split."
            )
        if (others := len(files) - len(found)) > 0:
            self._notes.append(
                f"data.path: {others} of {len(files)} files in {place} are no pictures"
            )
        return np.array(found, dtype=object)

    def _shape_of(self, splits: Sequence[np.ndarray]) -> ImageShape:
        first, expected = splits[0][0], size_of(Path(splits[0][0]))
        for path in np.concatenate(splits):  # all are looked at: what cannot be read is told now
            if (found := size_of(Path(path))) != expected and self.size is None:
                raise ValueError(
                    f"{path} is {found[0]} x {found[1]} (width x height), {first} is "
                    f"{expected[0]} x {expected[1]}. Give pictures of one size, or data.size=N: "
                    "they are cropped and resized to N x N."
                )
        if self.size is not None:
            return ImageShape(self.size, self.size, self.channels, self.num_levels)
        width, height = expected
        return ImageShape(height, width, self.channels, self.num_levels)


class Pictures(Rows):
    """Pictures, decoded as they are read.

    Args:
        paths: Their files.
        shape: The shape of the images.
        resize: Whether pictures of another size are cropped and resized, or refused.
    """

    def __init__(self, paths: np.ndarray, shape: ImageShape, *, resize: bool):
        self.paths, self.resize = paths, resize
        self.image = shape
        self.shape = (len(paths), *shape.axes)
        self.dtype = np.dtype(np.uint8)

    def read(self, indices: np.ndarray) -> np.ndarray:
        paths = (Path(path) for path in self.paths[indices])
        images = [read_image(path, self.image, resize=self.resize, background=0) for path in paths]
        return np.concatenate(images) if images else np.empty((0, *self.shape[1:]), self.dtype)
